// helper.c - see helper.h.
//
// The descriptors' thread has a table of descriptors of its own: the program may close all that it does not know. It makes the helper
// and carries out what takes descriptors. The helper's parent is a process that shares the program's memory, and no child that wait() finds.
#define _GNU_SOURCE
#include "preempt/far/helper.h"
#include "preempt/far/far.h"
#include "preempt/bridge.h"
#include "preempt/preempt.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__ // it takes the thread's descriptors for the program's of the same numbers
#define socketpair(domain, type, protocol, pair) syscall(SYS_socketpair, domain, type, protocol, pair)
#define socket(domain, type, protocol) syscall(SYS_socket, domain, type, protocol)
#define connect(fd, to, bytes) syscall(SYS_connect, fd, to, bytes)
#define open(path, flags) syscall(SYS_openat, AT_FDCWD, path, flags)
#define close(fd) syscall(SYS_close, fd)
#define sendmsg(fd, message, flags) syscall(SYS_sendmsg, fd, message, flags)
#define recvmsg(fd, message, flags) syscall(SYS_recvmsg, fd, message, flags)
#define mmap(at, bytes, access, flags, fd, offset) (void *)syscall(SYS_mmap, at, bytes, access, flags, fd, offset)
#endif

enum { VIEWS = 2 * GP_GPUS, HIGHEST = 256 }; // HIGHEST: descriptors of the thread are below
static struct view {
	uint8_t *at; // a gp_view; NULL: none
	bool used;   // it is the GPU's
} view[VIEWS];
static bool file_is[HIGHEST];
static struct gp_page *_Atomic page;
static int socket_fd = -1;
static const struct gp_bridge_layer *layer;
#define NO_PAGE UINT32_MAX
static _Atomic uint32_t page_is; // futex: helpers so far, whose page is there; NO_PAGE: there is none, and will be none
static _Atomic uint32_t started; // futex: 0, then 1: hooks are installed, or 2: they are not

static void say(_Atomic uint32_t *what, uint32_t how)
{
	uint32_t none = 0;
	if (__atomic_compare_exchange_n((uint32_t *)what, &none, how, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		gp_futex_wake(what, INT32_MAX, false);
}

static _Atomic uint32_t exits; // the program does; futex once it is 2: the helper has ended

// The helper's parent needs this. It is written before the parent is made.
static struct {
	char *argument[8];
	char **environment;
	int page, socket;
	pid_t parent, program;
	int status;             // as wait has it, once it has ended
	_Atomic uint32_t state; // futex: enum
} born;
enum { UNBORN, RUNS, NOT_BORN, ENDED };
enum { NO_EXEC = 127 }; // its status, where the file cannot be run

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

// The functions below run in processes that have the memory of the program, and of one of its threads. No sanitizer watches them. They call
// nothing of libc, which a sanitizer may stand in front of.
#define BARE __attribute__((no_sanitize("thread", "address"), noinline))

// A fifth argument is 0.
BARE static long raw(long number, long a, long b, long c, long d)
{
#ifdef __x86_64__
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
#else
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
			 x3 __asm__("x3") = d, x4 __asm__("x4") = 0;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
#endif
}

// Runs a function in a new process, on a stack whose end is given. Returns the process, or -errno.
BARE static long make_process(long flags, void *stack, int (*run)(void *), void *argument)
{
	void **top = (void **)stack - 2;
	top[0] = (void *)run;
	top[1] = argument;
#ifdef __x86_64__
	long result;
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "pop %%rax\n\t"
			 "pop %%rdi\n\t"
			 "call *%%rax\n\t"
			 "hlt\n"
			 "1:"
			 : "=a"(result)
			 : "a"(SYS_clone), "D"(flags), "S"(top), "d"(0), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
#else
	register long x8 __asm__("x8") = SYS_clone, x0 __asm__("x0") = flags, x1 __asm__("x1") = (long)top,
			 x2 __asm__("x2") = 0, x3 __asm__("x3") = 0, x4 __asm__("x4") = 0;
	__asm__ volatile("svc 0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, #0\n\t"
			 "ldp x1, x0, [sp], #16\n\t"
			 "blr x1\n\t"
			 "brk #0\n"
			 "1:"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
			 : "memory");
	return x0;
#endif
}

BARE static void close_from(int first)
{
	if (raw(SYS_close_range, first, ~0u, 0, 0) == 0)
		return;
	for (int fd = first; fd < 2 * HIGHEST; fd++) // Linux before 5.9
		raw(SYS_close, fd, 0, 0, 0);
}

// The helper, before it is a program of its own. It blocks all signals: a handler of the program must not run here. It shares memory with the program.
BARE static int become(void *unused)
{
	raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
	raw(SYS_setsid, 0, 0, 0, 0);
	long page_fd = raw(SYS_fcntl, born.page, F_DUPFD_CLOEXEC, GP_HELPER_SOCKET + 1, 0);
	long socket = raw(SYS_fcntl, born.socket, F_DUPFD_CLOEXEC, GP_HELPER_SOCKET + 1, 0);
	raw(SYS_dup3, page_fd, GP_HELPER_PAGE, 0, 0);
	raw(SYS_dup3, socket, GP_HELPER_SOCKET, 0, 0);
	close_from(GP_HELPER_SOCKET + 1);
	raw(SYS_execve, (long)born.argument[0], (long)&born.argument[1], (long)born.environment, 0);
	raw(SYS_exit_group, NO_EXEC, 0, 0, 0);
	return 0;
}

// The program may give up privileges later, as by setuid, of which the helper's parent hears nothing. Its memory is the program's, so whoever
// takes the program over has it too. From here on the system carries out nothing for it but to wait and to end.
BARE static void confine(void)
{
	enum { KILL = SECCOMP_RET_KILL, ALLOW = SECCOMP_RET_ALLOW };
#ifdef __x86_64__
	enum { ARCH = AUDIT_ARCH_X86_64 };
#else
	enum { ARCH = AUDIT_ARCH_AARCH64 };
#endif
	static const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)ARCH, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_wait4, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, (uint32_t)KILL),
		BPF_STMT(BPF_RET | BPF_K, (uint32_t)ALLOW),
	};
	static const struct sock_fprog filter = {sizeof code / sizeof *code, (struct sock_filter *)code};
	raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0);
	raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&filter, 0);
}

// The helper's parent.
BARE static int parent(void *stack)
{
	raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
	long pid = make_process(CLONE_VM | CLONE_VFORK | SIGCHLD, stack, become, NULL);
	close_from(0);
	enum { WAKE = 1, ALL = INT32_MAX };
	born.state = pid > 0 ? RUNS : NOT_BORN;
	raw(SYS_futex, (long)&born.state, WAKE, ALL, 0);
	confine();
	while (pid > 0 && raw(SYS_wait4, pid, (long)&born.status, __WALL, 0) == -EINTR)
		continue;
	born.state = ENDED;
	page->bell++;
	raw(SYS_futex, (long)&page->bell, WAKE, ALL, 0);
	raw(SYS_exit_group, 0, 0, 0, 0);
	return 0;
}

static char *library(void)
{
	char line[4352], *path = NULL;
	FILE *maps = fopen("/proc/self/maps", "re");
	while (maps && !path && fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char *name = strchr(line, '/');
		if (name && sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= (unsigned long)__ehdr_start &&
		    (unsigned long)__ehdr_start < to) {
			name[strcspn(name, "\n")] = 0;
			path = strdup(name);
		}
	}
	if (maps)
		fclose(maps);
	return path;
}

// Without what would put libraries into the helper.
static char **environment_of(char **from)
{
	size_t n = 0, kept = 0;
	while (from[n])
		n++;
	char **to = calloc(n + 1, sizeof *to);
	for (size_t i = 0; to && i < n; i++)
		if (strncmp(from[i], "LD_PRELOAD=", 11) && strncmp(from[i], "LD_AUDIT=", 9) &&
		    strncmp(from[i], "CUDA_INJECTION", 14))
			to[kept++] = from[i];
	return to;
}

// Valgrind ends a program that makes a process in the way that make_process does. Instructions that change nothing ask it whether it is there
// (a client request: RUNNING_ON_VALGRIND in its manual).
static bool is_under_valgrind(void)
{
	const uintptr_t request[6] = {0x1001};
	uintptr_t answer = 0;
#ifdef __x86_64__
	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
			 : "+d"(answer)
			 : "a"(request)
			 : "cc", "memory");
#else
	register const uintptr_t *x4 __asm__("x4") = request;
	register uintptr_t x3 __asm__("x3") = 0;
	__asm__ volatile("ror x12, x12, #3; ror x12, x12, #13; ror x12, x12, #51; ror x12, x12, #61; orr x10, x10, x10"
			 : "+r"(x3)
			 : "r"(x4)
			 : "cc", "memory");
	answer = x3;
#endif
	return answer != 0;
}

// The loader's list has a lock, which the thread that starts the core may hold: it does this itself.
static const char *find_files(char **environment)
{
	static char number[16];
	Dl_info loader;
	if (is_under_valgrind())
		return "valgrind lets no helper process start";
	if (!dladdr(&_r_debug, &loader))
		return "the dynamic loader is not known";
	born.program = getpid();
	snprintf(number, sizeof number, "%d", born.program);
	born.argument[0] = strdup(loader.dli_fname);
	born.argument[1] = "gpreempt-helper";
	born.argument[2] = library();
	born.argument[3] = number;
	born.argument[4] = program_invocation_name;
	born.environment = environment_of(environment);
	return born.argument[0] && born.argument[2] && born.environment ? NULL : "the library's file is not known";
}

static int make_memory(void)
{
	enum { NOEXEC_SEAL = 8 }; // MFD_NOEXEC_SEAL, from Linux 6.3 on
	int fd = (int)syscall(SYS_memfd_create, "gpreempt-helper", MFD_CLOEXEC | NOEXEC_SEAL);
	return fd < 0 && errno == EINVAL ? (int)syscall(SYS_memfd_create, "gpreempt-helper", MFD_CLOEXEC) : fd;
}

// The parent has said how it went, or has ended, as by a filter.
static bool is_born(void)
{
	enum { LOOK_NS = 100000000 };
	while (born.state == UNBORN) {
		gp_futex_wait(&born.state, UNBORN, LOOK_NS, true);
		if (born.state == UNBORN && waitpid(born.parent, NULL, __WCLONE | WNOHANG) == born.parent)
			return false;
	}
	if (born.state != NOT_BORN)
		return true;
	while (waitpid(born.parent, NULL, __WCLONE) < 0 && errno == EINTR)
		continue;
	return false;
}

static const char *begin_process(struct gp_page *fresh)
{
	enum { STACK_BYTES = 32 << 10 };
	static char stacks[2][STACK_BYTES] __attribute__((aligned(16)));
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return "no socket for the helper process";
	memcpy(fresh->build, layer->build,
	       layer->build_bytes < sizeof fresh->build ? layer->build_bytes : sizeof fresh->build);
	born.socket = pair[1];
	born.state = UNBORN;
	born.status = 0;
	born.parent =
		(pid_t)make_process(CLONE_VM | CLONE_UNTRACED, stacks[0] + STACK_BYTES, parent, stacks[1] + STACK_BYTES);
	bool is = born.parent > 0 && is_born();
	close(pair[1]);
	if (!is)
		close(pair[0]);
	else
		socket_fd = pair[0];
	return is ? NULL : "no helper process (clone)";
}

// A page comes to the place of an earlier one, in which a thread of the program may be about to ring a bell. A page stays where a lane's
// thread still waits in a call; a later page takes its place.
static const char *make_helper(void)
{
	static struct gp_page *stays;
	born.page = make_memory();
	if (born.page < 0)
		return "no shared memory (memfd_create)";
	const char *why = NULL;
	struct gp_page *last = page, *fresh;
	struct gp_page *place = last && gp_lanes_have_ended(last)   ? last :
				stays && gp_lanes_have_ended(stays) ? stays :
								      NULL;
	if (ftruncate(born.page, sizeof(struct gp_page))) // EFBIG raises SIGXFSZ too, which this thread blocks
		why = errno == EFBIG ? "the limit of file sizes is too low for the helper process (ulimit -f)" :
				       "no shared memory (ftruncate)";
	else if ((fresh = mmap(place, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | (place ? MAP_FIXED : 0),
			       born.page, 0)) == MAP_FAILED)
		why = "no more memory can be mapped";
	else {
		if (last != place && (!stays || stays == place)) // of more than one that stays at a time the others are left
			stays = last;
		why = begin_process(page = fresh);
	}
	close(born.page);
	return why;
}

// Answers.

static int64_t failed(void) { return -errno; }

static int64_t new_view(bool read_only)
{
	for (int i = 0; i < VIEWS; i++) {
		if (view[i].at)
			continue;
		void *at = mmap(NULL, sizeof(struct gp_view), PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at == MAP_FAILED)
			return failed();
		if (read_only)
			mprotect(at, sizeof(struct gp_segment), PROT_READ);
		view[i] = (struct view){at, false};
		return i;
	}
	return -ENFILE;
}

static int64_t map(const struct gp_helper_question *q, int fd)
{
	struct view *v = &view[q->a];
	if (q->a >= VIEWS || !v->at || q->b > sizeof(struct gp_view) || q->c > sizeof(struct gp_view) - q->b)
		return -EINVAL;
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED : MAP_SHARED | MAP_FIXED;
	return mmap(v->at + q->b, q->c, PROT_READ | (q->e ? PROT_WRITE : 0), flags, fd, (off_t)q->d) == MAP_FAILED ?
		       failed() :
		       0;
}

static int64_t move(const struct gp_helper_question *q)
{
	struct view *v = &view[q->a];
	if (q->a >= VIEWS || !v->at || q->b >= GP_GPUS)
		return -EINVAL;
	bool moved = gp_bridge_gpu_move((int)q->b, v->at, (uint32_t)q->c, q->d & 1, q->d >> 1);
	for (int i = 0; i < VIEWS; i++)
		if (view[i].used && view[i].at == (void *)gp_gpu[q->b].segment)
			view[i] = (struct view){0};
	*v = moved ? (struct view){(void *)gp_gpu[q->b].segment, true} : (struct view){0};
	return moved;
}

static int64_t attach(const struct gp_helper_question *q)
{
	struct view *v = &view[q->a];
	if (q->a >= VIEWS || !v->at || q->b >= GP_GPUS)
		return -EINVAL;
	if (gp_gpu[q->b].segment) // an earlier helper has attached it
		return move(q) ? 0 : -ENOMEM;
	v->used = true;
	gp_bridge_gpu_attach((int)q->b, v->at, (uint32_t)q->c, q->d);
	return 0;
}

static int64_t isolate(uint64_t gpu)
{
	void *memory = gpu < GP_GPUS ? gp_bridge_nobodys_memory() : NULL;
	return memory && gp_bridge_gpu_move((int)gpu, memory, 0, false, false);
}

static int64_t keep_file(int fd)
{
	if (fd < 0 || fd >= (int)(sizeof file_is / sizeof *file_is))
		return -EMFILE;
	file_is[fd] = true;
	return fd;
}

static int64_t lock(const struct gp_helper_question *q)
{
	struct flock l = {.l_type = (short)q->b, .l_whence = SEEK_SET, .l_start = (off_t)q->c, .l_len = (off_t)q->d};
	if (q->a >= sizeof file_is / sizeof *file_is || !file_is[q->a])
		return -EBADF;
	return fcntl((int)q->a, F_SETLK, &l) ? failed() : 0;
}

static int64_t connect_to(const char *path, int *fd)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_usec = 200000};
	if (strnlen(path, sizeof to.sun_path) == sizeof to.sun_path)
		return -ENAMETOOLONG;
	strcpy(to.sun_path, path);
	*fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return failed();
	setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	return connect(*fd, (struct sockaddr *)&to, sizeof to) ? failed() : 0;
}

static int64_t answer(const struct gp_helper_question *q, int *fd, int *back)
{
	switch ((enum gp_helper_what)q->what) {
	case GP_HELPER_STARTED: return say(&started, q->a ? 1 : 2), 0;
	case GP_HELPER_FILE: {
		int64_t kept = keep_file(*fd);
		*fd = kept < 0 ? *fd : -1;
		return kept;
	}
	case GP_HELPER_CLOSE:
		if (q->a < sizeof file_is / sizeof *file_is && file_is[q->a]) {
			file_is[q->a] = false;
			close((int)q->a);
		}
		return 0;
	case GP_HELPER_LOCK: return lock(q);
	case GP_HELPER_CONNECT: return connect_to(q->text, back);
	case GP_HELPER_OPEN:
		*back = open(q->text, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		return *back < 0 ? failed() : 0;
	case GP_HELPER_VIEW: return new_view(q->a);
	case GP_HELPER_MAP: return map(q, *fd);
	case GP_HELPER_ATTACH: return attach(q);
	case GP_HELPER_MOVE: return move(q);
	case GP_HELPER_ISOLATE: return isolate(q->a);
	case GP_HELPER_FREE:
		if (q->a < VIEWS && view[q->a].at && !view[q->a].used) {
			munmap(view[q->a].at, sizeof(struct gp_view));
			view[q->a] = (struct view){0};
		}
		return 0;
	case GP_HELPER_MEMORY: return gp_given_map(*fd, q->a);
	}
	return -EINVAL;
}

union descriptor {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

static ssize_t hear(struct gp_helper_question *q, int *fd)
{
	union descriptor with;
	struct iovec part = {q, sizeof *q};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &with, .msg_controllen = sizeof with};
	ssize_t bytes = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct cmsghdr *c = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	*fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(c), sizeof *fd);
	return bytes;
}

static void tell(int64_t result, int fd)
{
	union descriptor with = {0};
	struct gp_helper_answer a = {result};
	struct iovec part = {&a, sizeof a};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd >= 0) {
		message.msg_control = &with;
		message.msg_controllen = sizeof with;
		with.header = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&with.header), &fd, sizeof fd);
	}
	sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

// The standard ones lead to nothing, in the helper too.
static void own_descriptors(void)
{
	if (syscall(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) && !unshare(CLONE_FILES)) { // Linux before 5.9
		DIR *list = opendir("/proc/thread-self/fd");
		for (struct dirent *entry; list && (entry = readdir(list));)
			if (atoi(entry->d_name) != dirfd(list))
				close(atoi(entry->d_name));
		if (list)
			closedir(list);
	}
	for (int i = 0; i < 3; i++)
		open("/dev/null", O_RDWR);
}

static const char *why_none;
static _Atomic uint32_t alone; // futex: helpers whose decisions have ended

static const char *complaint; // that there is no further helper; by the thread that has the program's standard error

static void complain(const char *why)
{
	char line[256];
	int bytes =
		snprintf(line, sizeof line,
			 "gpreempt: %s; there is no further helper process for now: this program runs as if alone\n", why);
	gp_bridge_say(line, (size_t)bytes);
}

static bool is_attached(void)
{
	for (int i = 0; i < VIEWS; i++)
		if (view[i].used)
			return true;
	return false;
}

static uint64_t silent_looks = 300; // GPREEMPT_TEST_SILENT_LOOKS, one a second

// Carries out what a helper asks, until it has ended, or the program exits. A helper that is stopped, or waits for something for ever, counts as
// one that has ended: calls of the program may wait for its decisions. Agents of GPUs make a call each second, and each few seconds on an
// overloaded machine.
static void attend(void)
{
	enum { LOOK_NS = 1000000000 }; // its parent, which rings, may have been killed
	static struct gp_helper_question q;
	uint64_t calls = gp_far_calls();
	for (uint64_t silent = 0; silent < silent_looks;) {
		int fd, back = -1;
		uint32_t seen = page->bell;
		memset(&q, 0, offsetof(struct gp_helper_question, text));
		ssize_t bytes = exits ? 0 : hear(&q, &fd);
		if (bytes > 0) {
			gp_far_order();
			int64_t result = answer(&q, &fd, &back);
			gp_far_order();
			tell(result, result < 0 ? -1 : back);
			if (fd >= 0)
				close(fd);
			if (back >= 0)
				close(back);
		} else if (bytes == 0 || (errno != EINTR && errno != EAGAIN) || born.state == ENDED) {
			return;
		} else {
			bool over = gp_futex_wait(&page->bell, seen, LOOK_NS, true) && errno == ETIMEDOUT;
			if (gp_far_calls() != calls || !is_attached() || gp_lanes_are_busy(page))
				silent = 0;
			else
				silent += over;
			calls = gp_far_calls();
		}
	}
	gp_log_line("the helper process has done nothing for minutes: it is ended");
}

static void wait_for_end(void)
{
	enum { PATIENCE_NS = 100000000 };
	for (uint64_t end = gp_now_ns() + PATIENCE_NS, now; born.state != ENDED && (now = gp_now_ns()) < end;) {
		uint32_t seen = page->bell;
		if (born.state != ENDED)
			gp_futex_wait(&page->bell, seen, end - now, true);
	}
	// It is stopped, or stands still: it ends with its parent, a child of this thread until it is waited for.
	if (born.state != ENDED && kill(born.parent, SIGKILL)) { // the program has given up the rights that the parent has
		complaint = "the helper process stands still, and this program may no longer end it";
		gp_futex_wake(&page_is, INT32_MAX, false);
	}
	while (waitpid(born.parent, NULL, __WCLONE) < 0 && errno == EINTR)
		continue;
}

static const char *why_it_ended(void)
{
	if (WIFEXITED(born.status) && WEXITSTATUS(born.status) == NO_EXEC)
		return "the library's file cannot be run as a helper process (execve)";
	return "the helper process ended as it started: it may lack address space (ulimit -v)";
}

// Decisions of a helper end with it.
static void end_helper(uint32_t number)
{
	enum { LOOK_NS = 5000000 }; // whether the program exits
	gp_helper_bells = NULL;
	gp_helper_gone = 1;
	gp_lanes_close(page);
	close(socket_fd);
	wait_for_end();
	while (!exits && alone < number) // then this process writes to no segment any more
		gp_futex_wait(&alone, number - 1, LOOK_NS, false);
	if (!exits)
		gp_given_return();
	for (size_t i = 0; i < sizeof file_is / sizeof *file_is; i++)
		if (file_is[i])
			close((int)i), file_is[i] = false;
	for (int i = 0; i < VIEWS; i++) {
		if (view[i].at && !view[i].used)
			munmap(view[i].at, sizeof(struct gp_view));
		view[i] = (struct view){0}; // GPUs have memory of their own now
	}
}

static void tell_core(uint32_t what)
{
	page_is = what;
	gp_futex_wake(&page_is, INT32_MAX, false);
}

static uint64_t again_ns = 3000000000; // GPREEMPT_TEST_AGAIN_US, for tests that end many

static void read_number(char **environment, const char *name, uint64_t *number, uint64_t unit)
{
	size_t length = strlen(name);
	for (; *environment; environment++)
		if (!strncmp(*environment, name, length))
			*number = strtoull(*environment + length, NULL, 10) * unit;
}

// How long to wait for the next helper. One that ends soon after its start again and again is made less and less often.
static uint64_t next_wait(uint64_t wait_ns, uint32_t number, uint64_t lived_ns)
{
	enum { FEW = 3, LIVES = 20, LONGEST = 100 };
	if (number <= FEW || lived_ns > LIVES * again_ns)
		return again_ns;
	return wait_ns < LONGEST / 2 * again_ns ? wait_ns * 2 : LONGEST * again_ns;
}

static void *hold_descriptors(void *unused)
{
	bool complained = false;
	uint64_t wait_ns = again_ns;
	own_descriptors();
	for (uint32_t number = 1; !exits; number++) {
		const char *why = make_helper();
		if (why && number == 1) {
			why_none = why;
			break;
		}
		if (why && !complained) {
			complained = true;
			complaint = why;
			gp_futex_wake(&page_is, INT32_MAX, false);
		}
		if (!why) {
			gp_helper_gone = 0;
			gp_helper_bells = page->bells;
			uint64_t born_ns = gp_now_ns();
			tell_core(number);
			attend();
			wait_ns = next_wait(wait_ns, number, gp_now_ns() - born_ns);
			bool began = started == 1;
			if (began && !exits)
				gp_log_line("the helper process has ended: this program runs as if alone until there "
					    "is another one");
			end_helper(number);
			if (!began) { // contexts that the program makes now stay unknown: a later helper is of no use
				if (!started)
					why_none = why_it_ended();
				say(&started, 2);
				break;
			}
		}
		for (uint64_t end = gp_now_ns() + wait_ns, now; !exits && (now = gp_now_ns()) < end;)
			gp_futex_wait(&exits, 0, end - now, false);
	}
	tell_core(NO_PAGE);
	if (exits) {
		exits = 2;
		gp_futex_wake(&exits, INT32_MAX, false);
	}
	return unused;
}

// The thread of the lane CORE, for one helper after the other. It has the program's descriptors, as those that it starts.
static void *serve_core(void *unused)
{
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); // ns
	for (uint32_t number = 0;; number++) {
		while (page_is == number) {
			const char *why = __atomic_exchange_n(&complaint, NULL, __ATOMIC_ACQ_REL);
			if (why)
				complain(why);
			else
				gp_futex_wait(&page_is, number, 0, false);
		}
		if (page_is == NO_PAGE)
			return unused;
		number = page_is - 1;
		gp_lane_serve(page, GP_LANE_CORE);
		if (!exits) {
			gp_bridge_alone(false);
			gp_lanes_end(page);
			gp_bridge_alone(true); // once more what the last calls have changed
		}
		alone = number + 1;
		gp_futex_wake(&alone, 1, false);
	}
}

// The helper ends with its program by itself. Where the program exits in an orderly way it ends before, so that nobody else gets a process to
// wait for. Last of all: lines of the log are written before. A child of vfork or fork is another process.
static void end_of_program(void)
{
	enum { LONGEST_NS = 200000000 };
	uint32_t no = 0;
	if (!page || page_is == NO_PAGE || born.program != getpid() ||
	    !__atomic_compare_exchange_n((uint32_t *)&exits, &no, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	page->bell++;
	gp_futex_wake(&page->bell, INT32_MAX, true);
	for (uint64_t end = gp_now_ns() + LONGEST_NS, now; exits == 1 && (now = gp_now_ns()) < end;)
		gp_futex_wait(&exits, 1, end - now, false);
}

__attribute__((destructor(101))) static void program_exits(void) { end_of_program(); }

const char *gp_helper_start(const struct gp_bridge_layer *with, void *lookup, char **environment)
{
	const uint64_t longest_ns =
		30000000000; // a loaded machine; contexts that the program makes before the hooks are there stay unknown
	static char text[96];
	pthread_t thread;
	const char *missing = gp_bridge_resolve(lookup), *why = find_files(environment);
	if (missing) {
		snprintf(text, sizeof text, "look up %s in the driver: not there", missing);
		return text;
	}
	if (why)
		return why;
	read_number(environment, "GPREEMPT_TEST_AGAIN_US=", &again_ns, 1000);
	read_number(environment, "GPREEMPT_TEST_SILENT_LOOKS=", &silent_looks, 1);
	layer = gp_bridge_begin(with);
	if (!gp_thread_start(&thread, serve_core, NULL))
		return "no more threads can be started";
	pthread_detach(thread);
	if (!gp_thread_start(&thread, hold_descriptors, NULL)) {
		tell_core(NO_PAGE);
		return "no more threads can be started";
	}
	pthread_detach(thread);
	uint64_t end = gp_now_ns() + longest_ns, now;
	while (!page_is && (now = gp_now_ns()) < end)
		gp_futex_wait(&page_is, 0, end - now, false);
	if (page_is == NO_PAGE)
		return why_none;
	while (!started && (now = gp_now_ns()) < end)
		gp_futex_wait(&started, 0, end - now, false);
	if (started)
		return why_none;
	end_of_program(); // it must install no hooks later
	return "the helper process does not answer";
}
