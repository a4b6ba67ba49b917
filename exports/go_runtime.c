// go_runtime.c - the start of the Go runtime: late, and without a trace in the program.
//
// go_runtime.ld keeps Go's constructor from running when the library is loaded. A program that never touches CUDA
// stays as it is, and what a fork without an exec leaves behind in its child is never half a Go runtime.
//
// Once it runs, the program must not notice its threads. A signal sent to a process goes to any of its threads that
// does not block it, and most programs rely on being the only ones there are: bash blocks SIGCHLD to guard its table
// of jobs, others wait in sigwait or signalfd for what all their threads block. Go's threads keep, for good, the mask
// of the thread that started the runtime, so it is started with everything blocked (the Makefile sees to the two signals
// that they would unblock all the same). Its handlers are taken out again.
#include "exports/layer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef void constructor(int argc, char **argv, char **envp);

// Set by the linker; both NULL where the library was linked without go_runtime.ld: then Go starts by itself.
extern constructor *const __start_gp_runtime[] __attribute__((weak));
extern constructor *const __stop_gp_runtime[] __attribute__((weak));

// What the runtime reads instead of what the kernel gave to the program: in one row the arguments, the environment and
// the auxiliary vector. The program may have changed its environment by the time that CUDA is initialised, or written
// a title over it (setproctitle), so it is copied when the library is loaded. An empty auxiliary vector makes
// the runtime read /proc/self/auxv.
static char **arguments;

void gp_keep_environment(void) {
	// Go's preemption of its own goroutines would send SIGURG to threads of the program, and two descriptors of its
	// cgroup's limits would stay open.
	static char settings[] = "GODEBUG=asyncpreemptoff=1,containermaxprocs=0,updatemaxprocs=0";
	enum { NAME, NO_ARGUMENTS, GODEBUG, VARIABLES, AT_NULL_WORDS = 2 };
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
	copy[GODEBUG] = settings; // the first of a name counts
	char *text = (char *)(copy + words);
	for (size_t i = 0; i < count; i++) {
		copy[VARIABLES + i] = text;
		text = stpcpy(text, environ[i]) + 1;
	}
	arguments = copy;
}

static bool same_handler(const struct sigaction *a, const struct sigaction *b) {
	return a->sa_sigaction == b->sa_sigaction;
}

// Go ends the process where it can not create a thread: a limit of processes, or of memory. It always can here. Threads
// are made ahead, before the runtime is started or not at all, and what Go asks for waits in a row for one of them. The
// last one makes further threads, and where it can not it tries again, for ever: to Go that is a thread that is slow
// to run, to the program it is preemption that stalls.

enum {
	AHEAD = 12,   // as many as Go starts with, on any number of processors (GOMAXPROCS of ../shim/main.go), and the last one
	WANTED = 256, // threads at most wait to be made: more than Go has
	AGAIN_ms = 50,
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned idle; // threads made ahead that wait for something to run
	bool given_up; // they end
	unsigned first, count;
	struct {
		void *(*run)(void *);
		void *argument;
	} wanted[WANTED];
} row = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

// Makes threads of what is wanted. row.lock is held.
static void make_threads(void) {
	pthread_attr_t detached;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	for (;;) {
		pthread_t thread;
		while (row.count == 0)
			pthread_cond_wait(&row.changed, &row.lock);
		if (pthread_create(&thread, &detached, row.wanted[row.first].run, row.wanted[row.first].argument) == 0) {
			row.first = (row.first + 1) % WANTED;
			row.count--;
			continue;
		}
		pthread_mutex_unlock(&row.lock);
		nanosleep(&(struct timespec){.tv_nsec = AGAIN_ms * 1000000l}, NULL);
		pthread_mutex_lock(&row.lock);
	}
}

static void *made_ahead(void *unused) {
	pthread_mutex_lock(&row.lock);
	while (row.count == 0 && !row.given_up)
		pthread_cond_wait(&row.changed, &row.lock);
	if (row.given_up) {
		pthread_mutex_unlock(&row.lock);
		return unused;
	}
	pthread_detach(pthread_self());
	if (row.idle == 1)
		make_threads();
	row.idle--;
	void *(*run)(void *) = row.wanted[row.first].run;
	void *argument = row.wanted[row.first].argument;
	row.first = (row.first + 1) % WANTED;
	row.count--;
	pthread_mutex_unlock(&row.lock);
	return run(argument);
}

// In place of pthread_create in Go's runtime (see the Makefile): never fails.
int gp_go_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
	*thread = pthread_self(); // Go does not look at it
	pthread_mutex_lock(&row.lock);
	while (row.count == WANTED) {
		pthread_mutex_unlock(&row.lock);
		nanosleep(&(struct timespec){.tv_nsec = AGAIN_ms * 1000000l}, NULL);
		pthread_mutex_lock(&row.lock);
	}
	row.wanted[(row.first + row.count++) % WANTED].run = run;
	row.wanted[(row.first + row.count - 1) % WANTED].argument = argument;
	pthread_cond_signal(&row.changed);
	pthread_mutex_unlock(&row.lock);
	return 0;
}

static bool make_ahead(void) {
	pthread_t thread[AHEAD];
	unsigned count = 0;
	pthread_mutex_lock(&row.lock);
	while (count < AHEAD && pthread_create(&thread[count], NULL, made_ahead, NULL) == 0)
		count++;
	row.idle = count;
	row.given_up = count < AHEAD;
	pthread_cond_broadcast(&row.changed);
	pthread_mutex_unlock(&row.lock);
	if (!row.given_up)
		return true;
	while (count > 0)
		pthread_join(thread[--count], NULL);
	return false;
}

// Go's runtime reserves addresses as it starts, and ends the process where it can not. Later it waits for what it lacks
// (_runtime/memory.go).
static bool room_for_go(void) {
	// Measured with prlimit --as: Go 1.26 starts where 1.3 GB are left, with the stacks of its threads; 0.15 GB it puts aside.
	const size_t reserves = 1552ul << 20, uses = 64ul << 20;
	void *addresses = mmap(NULL, reserves, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (addresses == MAP_FAILED)
		return false;
	munmap(addresses, reserves);
	void *memory = mmap(NULL, uses, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	munmap(memory, uses);
	return true;
}

// come_up runs Go's constructor. It installs handlers, and marks those of the program to run on Go's signal stacks,
// before it returns; the rest happens on threads of its own.
static void come_up(void) {
	struct sigaction before[NSIG];
	bool known[NSIG];
	for (int s = 1; s < NSIG; s++)
		known[s] = sigaction(s, NULL, &before[s]) == 0;
	for (constructor *const *c = __start_gp_runtime; c < __stop_gp_runtime; c++)
		(*c)(1, arguments, &arguments[2]);
	for (int s = 1; s < NSIG; s++) {
		struct sigaction now;
		if (!known[s] || sigaction(s, NULL, &now) != 0)
			continue;
		bool marked = same_handler(&now, &before[s]) && now.sa_flags != before[s].sa_flags;
		// A program's own handler, set meanwhile by another thread, stays.
		if (marked || (!same_handler(&now, &before[s]) && gp_is_ours((void *)now.sa_sigaction)))
			sigaction(s, &before[s], NULL);
	}
}

// What our own writing to a log makes for the writing thread: nobody reads it any more, or it is as long as a limit allows.
// Go's threads keep them blocked for ever.
static const int of_writing[] = {SIGPIPE, SIGXFSZ};

static void take_back(const sigset_t *pending_before) {
	for (size_t i = 0; i < sizeof of_writing / sizeof *of_writing; i++) {
		sigset_t one;
		sigemptyset(&one);
		sigaddset(&one, of_writing[i]);
		if (sigismember(pending_before, of_writing[i]) == 0)
			sigtimedwait(&one, NULL, &(struct timespec){0});
	}
}

void gp_run_blocked(void (*run)(void)) {
	sigset_t all, before, pending;
	stack_t signal_stack;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	sigpending(&pending);
	bool have_stack = sigaltstack(NULL, &signal_stack) == 0;
	gp_keep_environment(); // if a constructor that ran before ours initialises CUDA
	if (!room_for_go()) {
		gp_complain("no more memory can be mapped");
	} else if (!make_ahead()) {
		gp_complain("no more threads can be started");
	} else {
		if (arguments)
			come_up();
		run();
	}
	if (have_stack) // Go leaves one of its own to a thread that had none
		sigaltstack(&signal_stack, NULL);
	take_back(&pending);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
