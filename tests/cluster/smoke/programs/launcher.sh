# What an MPI launcher pod runs: mpirun over the operator's hostfile; the arguments are what each rank runs.
python3 /programs/look.py launcher /etc/mpi "$HOME/.ssh"
hosts=$(cut -d' ' -f1 /etc/mpi/hostfile)
# A pod's DNS record comes after the pod, also for the launcher's own name.
for host in $hosts; do
    for _ in $(seq 600); do getent hosts "$host" >/dev/null && break; sleep 0.1; done
done
other=$(echo "$hosts" | grep -v "^$(hostname)\." | head -1)
ssh -o BatchMode=yes "$other" true
echo "THE KEY AS IT IS: $?"
if [ "$(id -u)" = 0 ]; then
    install -m 600 "$HOME/.ssh/id_rsa" /tmp/key # ssh refuses a key of its own user that others may read
    export OMPI_MCA_plm_rsh_args="$OMPI_MCA_plm_rsh_args -i /tmp/key"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# No operator gives MASTER_ADDR. The hostfile's first host has rank 0, unless mpirun itself runs on a host of the file.
MASTER_ADDR=$(echo "$hosts" | head -1)
export MASTER_ADDR MASTER_PORT=29500 OMP_NUM_THREADS=1
mpirun -np 4 -x MASTER_ADDR -x MASTER_PORT -x OMP_NUM_THREADS -x PATH "$@" || exit
# The test looks around as long as nothing is cleaned up.
for _ in $(seq 1200); do [ -e /tmp/go ] && break; sleep 0.2; done
