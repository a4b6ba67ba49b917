// start.c - the library's constructor, the start of the core, forks, and ioctl.
#include "exports/layer.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// The core is started once, on the thread of the first cuInit.

enum { IDLE, STARTING, STARTED };
static atomic_int start_state;
static _Atomic uintptr_t starter;
static _Atomic(void *) start_function;

enum { MAX_WAIT_ms = 2000 };

static void sleep_1_ms(void)
{
	syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 1000000}, NULL);
} // no place at which a thread is cancelled

void gp_set_start(gp_start_fn *start) { atomic_store(&start_function, (void *)start); }

static void run_start(void)
{
	gp_start_fn *start = (gp_start_fn *)atomic_load(&start_function);
	const char *why_not = start ? start(gp_kept_environment()) : "the library's core is not there";
	if (why_not)
		gp_complain(why_not);
}

static COLD void start_or_wait(void)
{
	int saved_errno = errno, idle = IDLE;
	if (atomic_compare_exchange_strong(&start_state, &idle, STARTING)) {
		atomic_store(&starter, (uintptr_t)pthread_self());
		gp_driver_symbol("cuInit"); // loads the driver
		run_start();
		atomic_store(&start_state, STARTED);
	} else if (atomic_load(&starter) != (uintptr_t)pthread_self()) {
		for (int ms = 0; ms < MAX_WAIT_ms && atomic_load(&start_state) != STARTED; ms++)
			sleep_1_ms();
	} // else the start itself called the driver through us
	errno = saved_errno;
}

void gp_start(void)
{
	if (likely(atomic_load_explicit(&start_state, memory_order_acquire) == STARTED))
		return;
	if (gp_active() && !gp_forked())
		start_or_wait();
}

// The driver's RM calls come by here. The next library's ioctl may be another interposer's.

typedef int ioctl_fn(int, unsigned long, ...);
static _Atomic(ioctl_fn *) next_ioctl;

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	ioctl_fn *next = atomic_load_explicit(&next_ioctl, memory_order_acquire);
	int result = next ? next(fd, request, argument) : (int)syscall(SYS_ioctl, fd, request, argument);
	const struct gp_hooks *hooks = gp_current_hooks();
	enum { NV_IOCTL_MAGIC = 'F' }; // nv-ioctl-numbers.h
	if (hooks && result >= 0 && (request >> 8 & 0xFF) == NV_IOCTL_MAGIC) {
		int saved_errno = errno;
		hooks->rm_ioctl(fd, request, argument);
		errno = saved_errno;
	}
	return result;
}

// Go code must not run in a child that was forked after the core was started, because its threads are gone. A child that was
// forked before may start the core itself.
static void in_child(void)
{
	if (atomic_load(&start_state) == IDLE)
		return;
	gp_pass_all();
}

__attribute__((constructor)) static void loaded(void)
{
	atomic_store_explicit(&next_ioctl, (ioctl_fn *)gp_next_symbol("ioctl"), memory_order_release);
	gp_find_libc();
	if (gp_active()) {
		gp_find_stderr();
		gp_keep_environment();
		pthread_atfork(NULL, NULL, in_child);
	}
}
