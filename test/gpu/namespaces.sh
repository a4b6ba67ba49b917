#!/bin/sh
# namespaces.sh - in which namespaces of its own a process can start the CUDA driver. One line for each: what cuInit returned (0 is success,
# 304 is CUDA_ERROR_OPERATING_SYSTEM), what a context returned, and what the driver may have missed. For root, or any user; some seconds.
#
#     test/gpu/namespaces.sh [LIBCUDA]
#
# The driver names its threads in /proc/PID/task/TID/comm. So a PID namespace should need a /proc of its own.
set -u
library=${1:-libcuda.so.1}
other=61003 # a user without a name

probe='
import ctypes, os, sys
def numbers():
    with open("/proc/self/status") as f:
        return " ".join(l.split(":")[1].strip() for l in f if l.startswith(("NSpid", "Uid"))).replace("\t", " ")
def comm():
    path = "/proc/%d/task/%d/comm" % (os.getpid(), os.getpid())
    try:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"probe")
        return "named"
    except OSError as e:
        return "not named (errno %d)" % e.errno
def opens():
    failed = []
    for path in ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/shm", "/proc/driver/nvidia/params"]:
        if not os.path.exists(path):
            failed.append(path + " is not there")
            continue
        try:
            os.close(os.open(path, os.O_RDWR if path.startswith("/dev/nvidia") else os.O_RDONLY))
        except OSError as e:
            failed.append("%s: errno %d" % (path, e.errno))
    return "; ".join(failed) or "all open"
try:
    name, files = comm(), opens()
    cuda = ctypes.CDLL(sys.argv[1])
    initialised = cuda.cuInit(0)
    context = "-"
    if initialised == 0:
        handle, device = ctypes.c_void_p(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), 0)
        context = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), device)
    print("cuInit %s, context %s; euid %d; thread %s; %s" % (initialised, context, os.geteuid(), name, files), flush=True)
    os._exit(0)
except Exception as e:
    print("probe: %s" % e, flush=True)
    os._exit(1)
'

# try NAME COMMAND...: what the probe says, run by the command; at most 4 s.
try() {
	what=$1
	shift
	said=$(timeout -s KILL 4 "$@" python3 -c "$probe" "$library" 2>&1 | tail -n 1)
	printf '%-58s %s\n' "$what" "${said:-ended without a word}"
}

each() { # each WHO OPTIONS COMMAND...: sets of namespaces, made by the command and unshare with the options
	who=$1 user=$2
	shift 2
	# shellcheck disable=SC2086 # options are words
	{
		try "$who: no other" "$@" unshare $user
		try "$who: net" "$@" unshare $user --net
		try "$who: ipc uts" "$@" unshare $user --ipc --uts
		try "$who: mount" "$@" unshare $user --mount
		try "$who: pid" "$@" unshare $user --pid --fork --kill-child
		try "$who: pid mount, own /proc" "$@" unshare $user --pid --fork --kill-child --mount-proc
		try "$who: all" "$@" unshare $user --pid --fork --kill-child --mount --net --ipc --uts
		try "$who: all, own /proc" "$@" unshare $user --pid --fork --kill-child --mount-proc --net --ipc --uts
	}
}

# The groups run beside each other.
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
if [ "$(id -u)" = 0 ]; then
	each root '' env >"$results/1" &
	as="setpriv --reuid $other --regid $other --clear-groups"
	# shellcheck disable=SC2086
	try "user $other: none" $as env >"$results/2"
	# shellcheck disable=SC2086
	each "user $other, mapped to root" '--user --map-root-user' $as >"$results/3" &
	# shellcheck disable=SC2086
	each "user $other, mapped to itself" '--user --map-current-user' $as >"$results/4" &
fi
each 'user namespace, mapped to root' '--user --map-root-user' env >"$results/5"
wait
cat "$results"/*
echo
ls -l /dev/nvidia* /dev/nvidia-caps 2>&1
grep -E 'DeviceFile|ModifyDeviceFiles' /proc/driver/nvidia/params 2>&1
uname -r
grep -E ' /(proc|dev)[^ ]* ' /proc/mounts
sysctl -n user.max_user_namespaces kernel.unprivileged_userns_clone 2>/dev/null
