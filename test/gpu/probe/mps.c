// mps.c - an MPS server of our own, with a folder of its own for its pipes.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

#define TOOL "nvidia-cuda-mps-control"
static char pipes[256];
static pid_t daemon_pid;

static pid_t start_tool(bool foreground, int input)
{
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(input, 0);
		if (foreground)
			execlp(TOOL, TOOL, "-f", NULL);
		else
			execlp(TOOL, TOOL, NULL);
		execl("/usr/local/nvidia/bin/" TOOL, TOOL, foreground ? "-f" : NULL, NULL);
		_exit(127);
	}
	return pid;
}

void start_mps(void)
{
	struct stat found;
	const char *folder = getenv("TMPDIR");
	snprintf(pipes, sizeof pipes, "%s/%s-XXXXXX", folder ? folder : "/tmp", probe.name);
	if (!mkdtemp(pipes))
		give_up("no folder for MPS: %s", strerror(errno));
	setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
	setenv("CUDA_MPS_LOG_DIRECTORY", pipes, 1);
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	daemon_pid = start_tool(true, nothing);
	close(nothing);
	for (double began = now_us(); now_us() - began < 10e6; pause_us(50e3)) {
		if (waitpid(daemon_pid, NULL, WNOHANG) == daemon_pid)
			give_up("no MPS server: %s cannot be run or has ended", TOOL);
		if (stat(text("%s/control", pipes), &found) == 0) {
			if (getenv("CUDA_VISIBLE_DEVICES")) // a client counts the GPUs that the server sees
				setenv("CUDA_VISIBLE_DEVICES", "0", 1);
			return;
		}
	}
	kill(-daemon_pid, SIGKILL);
	give_up("no MPS server: no control pipe in %s", pipes);
}

static void await(pid_t pid, double seconds)
{
	for (double began = now_us(); now_us() - began < seconds * 1e6; pause_us(50e3))
		if (waitpid(pid, NULL, WNOHANG) == pid)
			return;
	kill(-pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *at) { return remove(path); }

void stop_mps(void)
{
	int order[2];
	if (pipe2(order, O_CLOEXEC))
		give_up("no pipe: %s", strerror(errno));
	pid_t pid = start_tool(false, order[0]);
	dprintf(order[1], "quit -t 5\n");
	close(order[0]);
	close(order[1]);
	await(pid, 8);
	await(daemon_pid, 5);
	kill(-daemon_pid, SIGKILL); // its server
	nftw(pipes, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
