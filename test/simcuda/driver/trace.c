// trace.c - SIMCUDA_TRACE: the actions of a machine's processes, one line after the other in one file, when they happen.
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int file = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_file(void)
{
	const char *path = getenv("SIMCUDA_TRACE");
	if (path && *path)
		file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

// One write for each line: lines of several processes do not mix.
void trace_line(const char *what, const char *name, uint64_t bytes)
{
	char line[128];
	pthread_once(&once, open_file);
	if (file < 0)
		return;
	int length = snprintf(line, sizeof line, "%llu %d %d %s %s %llu\n", (unsigned long long)now_ns(), getpid(),
			      (int)syscall(SYS_gettid), what, name, (unsigned long long)bytes);
	if (length > 0 && length < (int)sizeof line && write(file, line, (size_t)length) < 0)
		file = -1; // nobody can be told
}
