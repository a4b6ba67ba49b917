// go_runtime.c - starts the Go runtime late, and hides it from the program.
//
// go_runtime.ld keeps Go's constructor from running when the library is loaded. So a program that never touches CUDA has no thread of
// Go's. A child that is forked without an exec never has half a Go runtime.
//
// The program must not notice the runtime's threads. The kernel delivers a signal that is sent to a process to any thread that
// does not block it. Most programs rely on having no threads but their own: bash blocks SIGCHLD to guard its table of jobs,
// others block a signal in all their threads and wait for it in sigwait or signalfd. Go's threads keep the signal mask of the
// thread that started the runtime, so that thread blocks everything meanwhile. (_runtime/overlay.sh sees to the few signals that Go
// would unblock again.)
//
// Go's runtime calls C through functions of its package cgo. The linker puts ours in their place (--wrap in link.sh).
#include "exports/layer.h"
#include "preempt/driver/arena.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef void constructor(int argc, char **argv, char **envp);

// Set by the linker. Both are NULL if the library was linked without go_runtime.ld: then Go starts by itself.
extern constructor *const __start_gp_runtime[] __attribute__((weak));
extern constructor *const __stop_gp_runtime[] __attribute__((weak));

// The runtime reads this instead of the program's stack: the arguments, the environment and the auxiliary vector, one after
// the other. The environment is copied when the library is loaded: by the time that CUDA is initialised, the program may have
// changed it, or written a title over it (setproctitle). An empty auxiliary vector makes the runtime read /proc/self/auxv.
static char **arguments;

#define MOST_PROCESSORS "4" // PROCESSORS

void gp_keep_environment(void)
{
	// Without these settings, Go would send SIGURG to threads of the program to preempt its goroutines. It would keep two files open
	// for the limits of its cgroup.
	static char settings[] = "GODEBUG=asyncpreemptoff=1,containermaxprocs=0,updatemaxprocs=0";
	static char processors[] = "GOMAXPROCS=" MOST_PROCESSORS;
	enum { NAME, NO_ARGUMENTS, GODEBUG, GOMAXPROCS, VARIABLES, AT_NULL_WORDS = 2 };
	if (arguments || !environ)
		return;
	size_t count = 0, bytes = 0;
	for (; environ[count]; count++)
		bytes += strlen(environ[count]) + 1;
	size_t words = VARIABLES + count + 1 + AT_NULL_WORDS;
	char **copy = calloc(1, words * sizeof *copy + bytes);
	if (!copy)
		return;
	copy[NAME] = program_invocation_name;
	copy[GOMAXPROCS] = processors;
	copy[GODEBUG] = settings; // of variables with the same name the first counts
	char *text = (char *)(copy + words);
	for (size_t i = 0; i < count; i++) {
		copy[VARIABLES + i] = text;
		text = stpcpy(text, environ[i]) + 1;
	}
	arguments = copy;
}

// Go ends the process if it cannot create a thread, because of a limit on processes or memory. Where creating one is slow, its goroutines
// stand still until the thread runs, while the program may wait for them. So no thread is created when Go asks for one. There are as many
// as it can need at a time, before it can need them: they wait here for their work.
//
// Go runs goroutines in PROCESSORS threads. Each goroutine that is in a call of C or of the system takes one more, and so does one with a
// thread to itself. The runtime has some of its own. These, and those for the goroutines that any process has, are there before the
// runtime is started; if they cannot be made, it is not. A goroutine that comes later, with a GPU, or keeps a thread, begins once
// gp_go_reserve has made its threads. So Go may find no idle thread, and none left here: then one of its threads is about to become idle
// (_runtime/threads.go).

enum {
	OF_RUNTIME = 3, // The one that initialises it, its monitor, and the one that would make others.
	PROCESSORS = 4, // The cores are the program's; MOST_PROCESSORS says so to Go.
	POLLING = 1,    // Waits for a timer.
	// Core, mover, learner, two rewriters, the log; and those that are short: finalizers, cleanups, the function of a timer, the question
	// for a level (member.Level), whose thread the first segment has then.
	GOROUTINES = 6 + 4,
	AHEAD = OF_RUNTIME + PROCESSORS + POLLING + GOROUTINES,
	WANTED = 256, // capacity of the queue, in which each has a thread that is about to take it
};

// Go's cgothreadstart, which its package cgo calls ThreadStart.
struct go_thread {
	struct {
		uintptr_t lowest, highest;
	} *stack;      // of the thread's g0, which begins with it. NULL: Go asks whether there is a thread
	uint64_t *tls; // then: whether one may be created, and the answer
	void (*run)(void);
};

struct wanted {
	void *(*first)(void *); // what Go's first thread is to run; NULL: any other thread
	struct go_thread thread;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool given_up;   // the threads end
	unsigned left;   // threads that Go may have yet
	unsigned spared; // made by reservations that failed, for the next one
	unsigned first, count;
	struct wanted wanted[WANTED];
} row = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

// Tests link without Go.
extern void crosscall1(void (*run)(void), void (*set_g)(void *), void *g) __attribute__((weak));
extern void __real_x_cgo_init(void *g, void (*set_g)(void *), void **tls, void **base) __attribute__((weak));
static void (*set_g)(void *); // the runtime's

extern typeof(__real_x_cgo_init) __wrap_x_cgo_init;
void __wrap_x_cgo_init(void *g, void (*set)(void *), void **tls, void **base)
{
	set_g = set;
	__real_x_cgo_init(g, set, tls, base);
}

static void *made_ahead(void *unused)
{
	pthread_mutex_lock(&row.lock);
	while (row.count == 0 && !row.given_up)
		pthread_cond_wait(&row.changed, &row.lock);
	if (row.given_up) {
		pthread_mutex_unlock(&row.lock);
		return unused;
	}
	struct wanted to = row.wanted[row.first];
	row.first = (row.first + 1) % WANTED;
	row.count--;
	pthread_mutex_unlock(&row.lock);
	pthread_detach(pthread_self());
	gp_get_arena();
	if (to.first)
		return to.first(NULL);
	crosscall1(to.thread.run, set_g, to.thread.stack);
	return NULL;
}

static bool make(pthread_t *thread) { return pthread_create(thread, NULL, made_ahead, NULL) == 0; }

// may_create: a thread that is created here is like Go's others.
static bool take(bool may_create)
{
	pthread_t thread;
	pthread_mutex_lock(&row.lock);
	bool given = row.left > 0;
	row.left -= given;
	pthread_mutex_unlock(&row.lock);
	return given || (may_create && make(&thread)); // the second where more goroutines wait than were reckoned with
}

static void hand_over(struct wanted to)
{
	pthread_mutex_lock(&row.lock);
	row.wanted[(row.first + row.count++) % WANTED] = to;
	pthread_cond_signal(&row.changed);
	pthread_mutex_unlock(&row.lock);
}

// Go's first thread, of OF_RUNTIME. Go 1.26 gives it an argument, which is NULL.
void __wrap_x_cgo_sys_thread_create(void *(*first)(void *));
void __wrap_x_cgo_sys_thread_create(void *(*first)(void *)) { hand_over((struct wanted){.first = first}); }

// Go's runtime asks whether there is a thread before anything depends on it (_runtime/threads.go), and then starts it. It starts those of
// OF_RUNTIME without asking. Starting never fails. Go's own function ends the process where it gets no thread, or no memory for its note.
//
// Go's collector may have given *asked->stack to C code of another thread before. A thread sanitizer does not see what Go does in between, so
// it does not watch this function.
void __wrap_x_cgo_thread_start(struct go_thread *);
__attribute__((no_sanitize("thread"))) void __wrap_x_cgo_thread_start(struct go_thread *asked)
{
	if (!asked->stack) {
		*asked->tls = take(*asked->tls);
		return;
	}
	pthread_attr_t attributes;
	size_t bytes = 0;
	pthread_attr_init(&attributes); // as made_ahead's
	pthread_attr_getstacksize(&attributes, &bytes);
	pthread_attr_destroy(&attributes);
	asked->stack->highest = bytes; // with 0 as the lowest address: the thread finds out where they are
	hand_over((struct wanted){.thread = *asked});
}

bool gp_go_reserve(unsigned count)
{
	pthread_t thread;
	pthread_mutex_lock(&row.lock);
	while (row.spared < count && make(&thread))
		row.spared++;
	bool made = row.spared >= count;
	if (made) {
		row.spared -= count;
		row.left += count;
	}
	pthread_mutex_unlock(&row.lock);
	return made;
}

// A thread becomes one of Go's by calls of the system (sigaltstack, rt_sigprocmask). The program may install a filter for all its threads later,
// which refuses these calls or ends the process. So all threads that were made become Go's at once: as many goroutines come here, each of
// which takes one and keeps it, until none is left. Then the program's thread ends the round. For that it may need a thread of Go's that
// leaves first: the thread that is to let it run waits for an idle one (idleRuns in _runtime/threads.go). Or another goroutine has taken the
// last thread, and waits in a call. So each thread also leaves by itself, once none was left for a second.
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned come, round;
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

unsigned gp_go_round(void)
{
	pthread_mutex_lock(&meeting.lock);
	unsigned round = meeting.round;
	pthread_mutex_unlock(&meeting.lock);
	return round;
}

static bool any_left(void)
{
	pthread_mutex_lock(&row.lock);
	bool any = row.left > 0;
	pthread_mutex_unlock(&row.lock);
	return any;
}

static bool changes_within_a_second(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	return pthread_cond_timedwait(&meeting.changed, &meeting.lock, &until) == 0;
}

void gp_go_meet(unsigned round)
{
	pthread_mutex_lock(&meeting.lock);
	meeting.come++;
	pthread_cond_broadcast(&meeting.changed);
	while (meeting.round == round && (changes_within_a_second() || any_left()))
		continue;
	pthread_mutex_unlock(&meeting.lock);
}

bool gp_go_more_meet(unsigned count)
{
	pthread_mutex_lock(&meeting.lock);
	while (meeting.come < count)
		pthread_cond_wait(&meeting.changed, &meeting.lock);
	bool more = any_left();
	if (!more) {
		meeting.round++;
		meeting.come = 0;
		pthread_cond_broadcast(&meeting.changed);
	}
	pthread_mutex_unlock(&meeting.lock);
	return more;
}

static bool make_ahead(void)
{
	pthread_t thread[AHEAD];
	unsigned count = 0;
	while (count < AHEAD && make(&thread[count]))
		count++;
	row.left = AHEAD - OF_RUNTIME;
	if (count == AHEAD)
		return true;
	pthread_mutex_lock(&row.lock);
	row.given_up = true;
	pthread_cond_broadcast(&row.changed);
	pthread_mutex_unlock(&row.lock);
	while (count > 0)
		pthread_join(thread[--count], NULL);
	return false;
}

// Go's runtime reserves addresses as it starts, and ends the process if it cannot. Later it waits for memory that it cannot get
// (go_memory.c).
static bool room_for_go(void)
{
	// Measured with prlimit --as: Go 1.26 needs 1.3 GB to start, with the stacks of its threads, and reserves 0.15 GB more. Malloc
	// takes 64 MB for each of up to 24 threads (get_arena). Half a GB is left to the program.
	const size_t reserves = 3584ul << 20, uses = 64ul << 20;
	void *addresses = mmap(NULL, reserves, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (addresses == MAP_FAILED)
		return false;
	if (munmap(addresses, reserves) != 0) // a filter: Go ends the process then
		return false;
	void *memory = mmap(NULL, uses, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	munmap(memory, uses);
	return true;
}

static struct rlimit files_before;

// Go raises the program's soft limit of open files as it starts, to the hard one less 1. That would go on to what select() can not hold, and
// to the programs that this one starts. Go gives it back at once (exports/files). A limit that the program sets meanwhile stays.
void gp_give_back_files(void)
{
	struct rlimit now;
	if (files_before.rlim_max && getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_max == files_before.rlim_max &&
	    now.rlim_cur == now.rlim_max - 1)
		setrlimit(RLIMIT_NOFILE, &files_before);
}

static void come_up(void)
{
	if (getrlimit(RLIMIT_NOFILE, &files_before) != 0)
		files_before.rlim_max = 0; // unknown
	gp_go_spare_memory();
	for (constructor *const *c = __start_gp_runtime; c < __stop_gp_runtime; c++)
		(*c)(1, arguments, &arguments[2]);
}

// Instead of libc's, for all of the library. Go would install handlers for all signals, and mark those of the program to run on Go's
// signal stacks. When a signal came meanwhile it would install its own again. So it installs none.
extern typeof(sigaction) __wrap_sigaction;
extern typeof(sigaction) __real_sigaction __attribute__((weak)); // tests link without it
int __wrap_sigaction(int signal, const struct sigaction *unused, struct sigaction *now)
{
	(void)unused;
	return now ? __real_sigaction(signal, NULL, now) : 0;
}

// Signals that our own writing to a log may raise: the log has no reader any more, or the file has reached a limit. Go's threads block
// them for ever.
static const int of_writing[] = {SIGPIPE, SIGXFSZ};

static void take_back(const sigset_t *pending_before)
{
	for (size_t i = 0; i < sizeof of_writing / sizeof *of_writing; i++) {
		sigset_t one;
		sigemptyset(&one);
		sigaddset(&one, of_writing[i]);
		if (sigismember(pending_before, of_writing[i]) == 0)
			sigtimedwait(&one, NULL, &(struct timespec){0});
	}
}

// Go ends the process where sigaltstack is refused. A stack that is in use cannot be set, but is proof enough.
static bool takes_signal_stack(stack_t *now)
{
	return sigaltstack(NULL, now) == 0 && (now->ss_flags & SS_ONSTACK || sigaltstack(now, NULL) == 0);
}

void gp_run_blocked(void (*run)(void))
{
	sigset_t all, before, pending;
	stack_t signal_stack;
	sigfillset(&all);
	if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) {
		gp_complain("the process may not block signals (rt_sigprocmask, seccomp)");
		return;
	}
	sigpending(&pending);
	bool have_stack = takes_signal_stack(&signal_stack);
	gp_keep_environment(); // if a constructor that ran before ours initialises CUDA
	if (!have_stack) {
		gp_complain("the process may not have signal stacks (sigaltstack, seccomp)");
	} else if (!room_for_go()) {
		gp_complain("no more memory can be mapped");
	} else if (!make_ahead()) {
		gp_complain("no more threads can be started");
	} else {
		if (arguments)
			come_up();
		run();
	}
	if (have_stack) // Go leaves one of its own where there was none
		sigaltstack(&signal_stack, NULL);
	take_back(&pending);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
