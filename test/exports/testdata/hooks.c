// A core that prints what it is told.
#include "exports/layer.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY(...) (printf("  " __VA_ARGS__), puts(""), fflush(stdout), (void)0)
static const char *const works[] = {"kernel", "graph", "copy", "memset", "other"};
static const char *const waits[] = {"stream", "event", "context", "stream?", "event?", "all", "memory", "load"};

static bool quiet; // the core is being timed

static void before_submit(struct gp_submission *s) {
	if (quiet)
		return;
	s->token = 42;
	SAY("before %s%s%s on %p: %p %p %u.%u.%u %u.%u.%u %u", works[s->work], s->blocking ? " blocking" : "",
		s->cooperative ? " cooperative" : "", (void *)s->stream, (void *)s->function, (void *)s->graph, s->blocks[0],
		s->blocks[1], s->blocks[2], s->threads[0], s->threads[1], s->threads[2], s->shared_bytes);
}
static void after_submit(struct gp_submission *s, CUresult r) {
	if (!quiet)
		SAY("after %s: %d %d", works[s->work], (int)s->token, r);
}
static void event_recorded(CUevent e, CUstream s) { SAY("event %p recorded on %p", (void *)e, (void *)s); }
static bool before_wait(enum gp_wait w, void *o) { SAY("before wait for %s %p", waits[w], o); return false; }
static void after_wait(enum gp_wait w, void *o, CUresult r) { SAY("after wait for %s %p: %d", waits[w], o, r); }
static void context_current(CUcontext c) { SAY("context %p current", (void *)c); }
static void context_destroying(CUcontext c) { SAY("context %p destroying", (void *)c); }
static void stream_destroying(CUstream s) { SAY("stream %p destroying", (void *)s); }
static bool stream_creating(int *priority) {
	SAY("stream of priority %d?", *priority);
	if (*priority == 7) // as it is
		return false;
	*priority -= 3;
	return true;
}
static void stream_created(CUstream s, int asked) { SAY("stream %p created, asked %d", (void *)s, asked); }
static void stream_priority(CUstream s, int *priority) { SAY("priority of %p is %d", (void *)s, *priority); *priority = 1; }
static void graph_instantiated(CUgraphExec e, CUgraph g) { SAY("graph %p instantiated from %p", (void *)e, (void *)g); }
static void graph_destroying(CUgraphExec e) { SAY("graph %p destroying", (void *)e); }
static void rm_ioctl(int fd, unsigned long request, void *argument) { SAY("ioctl %#lx %p", request, argument); }
static bool code_wanted(void) { return getenv("TEST_NO_CODE") == NULL; }
static void code_missed(const char *reason) { SAY("missed: %s", reason); }

static const struct gp_hooks hooks = {
	.before_submit = before_submit, .after_submit = after_submit, .event_recorded = event_recorded,
	.before_wait = before_wait, .after_wait = after_wait, .context_current = context_current,
	.context_destroying = context_destroying, .stream_destroying = stream_destroying, .stream_creating = stream_creating,
	.stream_created = stream_created, .stream_priority = stream_priority, .graph_instantiated = graph_instantiated,
	.graph_destroying = graph_destroying, .rm_ioctl = rm_ioctl,
	.code_wanted = code_wanted, .code_missed = code_missed,
};

static bool blocked(int signal) {
	sigset_t set;
	return pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, signal) == 1;
}

static void start(void) {
	SAY("start, SIGCHLD %s, SIGTERM %s", blocked(SIGCHLD) ? "blocked" : "open", blocked(SIGTERM) ? "blocked" : "open");
	CUresult (*count)(int *) = (CUresult (*)(int *))gp_driver_symbol("cuDeviceGetCount");
	int n;
	if (count)
		count(&n);
	cuInit(0); // a start that comes back through the library passes
	struct sigaction segv, pipe, bus;
	sigaction(SIGSEGV, NULL, &segv);
	sigaction(SIGPIPE, NULL, &pipe);
	sigaction(SIGBUS, NULL, &bus);
	SAY("SIGSEGV %s, SIGPIPE %s, SIGBUS %s%s", segv.sa_handler == SIG_DFL ? "restored" : "taken",
		pipe.sa_handler == SIG_DFL ? "restored" : "taken", bus.sa_handler == SIG_DFL ? "lost" : "the program's",
		bus.sa_flags & SA_ONSTACK ? ", changed" : "");
	quiet = getenv("TEST_QUIET") != NULL;
	gp_install_hooks(&hooks);
	atomic_store(&gp_armed, getenv("TEST_UNARMED") == NULL);
}

// What stands for Go's constructor: it takes signals, and changes how the program gets its own.
static void taken(int signal) { _Exit(signal); }

static void runtime(int argc, char **argv, char **envp) {
	struct sigaction action = {.sa_handler = taken}, bus;
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGPIPE, &action, NULL);
	sigaction(SIGBUS, NULL, &bus);
	bus.sa_flags |= SA_ONSTACK;
	sigaction(SIGBUS, &bus, NULL);
	bool priority = false;
	for (char **e = envp; *e; e++)
		priority |= strcmp(*e, "GPREEMPT_PRIORITY=5") == 0;
	SAY("runtime of %d argument, %s, SIGCHLD %s", argc,
		argv[0] && !argv[1] && envp == argv + 2 && priority ? "environment kept" : "environment lost",
		blocked(SIGCHLD) ? "blocked" : "open");
	if (!getenv("TEST_NO_START"))
		gp_set_start(start);
}

static void (*const constructor)(int, char **, char **) __attribute__((section("gp_runtime"), used)) = runtime;
