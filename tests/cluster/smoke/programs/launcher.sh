# What an MPI launcher pod runs; arguments go to mpirun. No operator gives MASTER_ADDR: it is the hostfile's first host.
python3 /programs/look.py launcher /etc/mpi "$HOME/.ssh"
MASTER_ADDR=$(cut -d' ' -f1 /etc/mpi/hostfile | head -1)
export MASTER_ADDR MASTER_PORT=29500 OMP_NUM_THREADS=1
exec mpirun "$@" -np 4 -x MASTER_ADDR -x MASTER_PORT -x OMP_NUM_THREADS -x PATH python /programs/allreduce.py
