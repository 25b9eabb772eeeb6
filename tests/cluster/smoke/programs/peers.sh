# A pod of an Indexed Job: say what is here, and go when the other one has been found by name.
python3 /programs/look.py "node-$JOB_COMPLETION_INDEX"
peer=js-node-0-$((1 - JOB_COMPLETION_INDEX)).js
for _ in $(seq 600); do
    if address=$(getent hosts "$peer"); then echo "PEER $address"; break; fi
    sleep 0.1
done
sleep 3 # so that the other one finds this one too
[ -n "$address" ]
