// A program that installs a filter of system calls, and whose results say whether all of its work was done.
// Usage: filters WHEN ANSWER NUMBER...
//   WHEN    start: before CUDA. kept: so, and it says "ready" after that. all: for all threads, once work was done. long: so, and the program works for seconds, in which the library sees to the
//           memory that it shares. reader: for a thread that reads pipes and sockets and uses no CUDA.
//   ANSWER  the errno of the calls in question, or 0: they end the process.
//   NUMBER  the calls that are refused. Of a reader: none, and all are refused but those that it needs.
// Says "ready" before a filter for all threads, which it installs at the end of its input. Then it says "sum N", or "reader N".
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FUNCTIONS(F) F(cuMemsetD32_v2, (ptr, unsigned, size_t))
#include "driver.h"

enum { NON_BLOCKING = 1, REQUESTS = 30, READS = 20, WORDS = 64, MOST = 64 };

static handle context, spin, add, stream;
static ptr words;
static unsigned done;

// System calls of a thread that reads, and ends.
static const int needed[] = {SYS_read,           SYS_recvfrom, SYS_write,  SYS_exit, SYS_exit_group,
			     SYS_rt_sigprocmask, SYS_madvise,  SYS_munmap, SYS_futex};

static void install(int answer, const int *list, unsigned count, bool listed_are_refused, unsigned flags)
{
	unsigned refusal = answer ? SECCOMP_RET_ERRNO | (unsigned)answer : SECCOMP_RET_KILL_PROCESS, n = 0;
	struct sock_filter f[2 * MOST + 2];
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < count; i++) {
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)list[i], 0, 1);
		f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed_are_refused ? refusal : SECCOMP_RET_ALLOW);
	}
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed_are_refused ? SECCOMP_RET_ALLOW : refusal);
	struct sock_fprog program = {(unsigned short)n, f};
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
}

static void begin(void)
{
	handle module;
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	OK(cuModuleGetFunction(&spin, module, "sim_spin_us"));
	OK(cuModuleGetFunction(&add, module, "sim_add"));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuMemAlloc_v2(&words, WORDS * 4));
	OK(cuMemsetD32_v2(words, 0, WORDS));
	OK(cuStreamSynchronize(NULL));
}

static void work(void)
{
	for (unsigned i = 0; i < REQUESTS; i++) {
		unsigned long long us = 100, n = WORDS;
		unsigned one = 1;
		void *of_spin[] = {&us}, *of_add[] = {&words, &n, &one};
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, of_spin, NULL));
		OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, of_add, NULL));
		OK(cuStreamSynchronize(stream));
		done++;
		usleep(1000); // the pace of requests
	}
}

static int ends[4]; // of a pipe, and of a pair of sockets

static void *read_all(void *unused)
{
	char byte;
	long count = 0;
	(void)unused;
	install(0, needed, sizeof needed / sizeof *needed, false, 0);
	while (count < READS && read(ends[0], &byte, 1) == 1 && recv(ends[2], &byte, 1, 0) == 1)
		count++;
	return (void *)count;
}

static void reader(void)
{
	pthread_t thread;
	void *count;
	work();
	CHECK(!pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends + 2));
	CHECK(!pthread_create(&thread, NULL, read_all, NULL));
	for (int i = 0; i < READS; i++) {
		CHECK(write(ends[1], "", 1) == 1 && write(ends[3], "", 1) == 1);
		work();
	}
	CHECK(!pthread_join(thread, &count));
	printf("reader %ld\n", (long)count);
}

int main(int count, char **arguments)
{
	int refused[MOST], calls = 0, answer = atoi(arguments[2]);
	for (int i = 3; i < count; i++)
		refused[calls++] = atoi(arguments[i]);
	bool kept = !strcmp(arguments[1], "kept");
	if (kept || !strcmp(arguments[1], "start"))
		install(answer, refused, (unsigned)calls, true, 0);
	begin();
	work();
	if (!strcmp(arguments[1], "reader")) {
		reader();
		return 0;
	}
	bool longer = !strcmp(arguments[1], "long");
	if (kept || longer || !strcmp(arguments[1], "all")) {
		puts("ready");
		fflush(stdout);
		while (getchar() != EOF)
			;
		if (!kept)
			install(answer, refused, (unsigned)calls, true, SECCOMP_FILTER_FLAG_TSYNC);
	}
	for (int i = 0; i < (longer ? 75 : 10); i++)
		work();
	unsigned sum[WORDS];
	OK(cuMemcpyDtoH_v2(sum, words, sizeof sum));
	for (int i = 0; i < WORDS; i++)
		CHECK(sum[i] == done);
	printf("sum %u\n", *sum);
	return 0;
}
