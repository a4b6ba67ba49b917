// checkpoint.c - a process is locked, checkpointed, restored and unlocked.
//
// A lock lets the calls that are under way and the work that was submitted end, and keeps all other calls waiting. A checkpoint frees the
// channels, closes the file of the resource manager and gives the device's memory back; a restore makes and takes them anew. Contexts,
// streams and memory keep their handles and addresses. Requests of another process are not simulated: simcuda_process stands for the
// driver's thread that carries them out.
#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	PROCESS_RUNNING,
	PROCESS_LOCKED,
	PROCESS_CHECKPOINTED,
	PROCESS_FAILED,
	CHANGING
}; // CUprocessState, and one of our own

static _Atomic uint32_t under_way;                       // calls
static _Atomic bool locked;                              // calls wait
static __thread bool inside;                             // the thread is in a call
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // what follows; waits of calls
static pthread_cond_t unlocked = PTHREAD_COND_INITIALIZER;
static int state, was; // was: the answer while it changes

// A call counts itself before it looks, and a lock locks before it counts: one of the two sees the other.
bool call_begins(const char *name)
{
	if (inside || !strncmp(name, "cuCheckpoint", strlen("cuCheckpoint")))
		return false;
	for (under_way++; locked; under_way++) {
		under_way--;
		pthread_mutex_lock(&lock);
		while (locked)
			pthread_cond_wait(&unlocked, &lock);
		pthread_mutex_unlock(&lock);
	}
	return inside = true;
}

void call_ends(bool counted)
{
	if (!counted)
		return;
	inside = false;
	under_way--;
}

void checkpoint_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&unlocked, NULL);
	locked = false;
}

static void let_go(int next)
{
	pthread_mutex_lock(&lock);
	locked = next != PROCESS_RUNNING;
	state = next;
	pthread_cond_broadcast(&unlocked);
	pthread_mutex_unlock(&lock);
}

static bool goes(int from, int to)
{
	pthread_mutex_lock(&lock);
	bool is = state == from;
	if (is) {
		was = from;
		state = to;
	}
	pthread_mutex_unlock(&lock);
	return is;
}

static bool is_quiet(void)
{
	bool quiet = under_way == 0;
	pthread_mutex_lock(&sim_lock);
	for (const struct CUctx_st *c = sim_contexts; c; c = c->next)
		for (const struct CUstream_st *s = c->streams; s; s = s->next)
			quiet = quiet && !s->head;
	sim_unlock();
	return quiet;
}

static CUresult process_lock(unsigned timeout_ms)
{
	const struct timespec pause = {0, 100000};
	uint64_t until = now_ns() + timeout_ms * 1000000ull;
	if (!goes(PROCESS_RUNNING, CHANGING))
		return CUDA_ERROR_ILLEGAL_STATE;
	for (locked = true; !is_quiet(); nanosleep(&pause, NULL))
		if (timeout_ms && now_ns() > until) {
			let_go(PROCESS_RUNNING);
			return CUDA_ERROR_NOT_READY;
		}
	let_go(PROCESS_LOCKED);
	return CUDA_SUCCESS;
}

// The process is locked, so no context comes or goes.
static CUresult process_checkpoint(void)
{
	if (!goes(PROCESS_LOCKED, CHANGING))
		return CUDA_ERROR_ILLEGAL_STATE;
	pthread_mutex_lock(&sim_lock);
	for (struct CUctx_st *c = sim_contexts; c; c = c->next)
		if (!c->of)
			context_stop(c);
	memory_away();
	sim_unlock();
	for (struct CUctx_st *c = sim_contexts; c; c = c->next)
		if (!c->of) {
			if (!rm_closes_only())
				rm_context_destroy(c->rm);
			c->rm = NULL;
			engine_remove(c->device, c->tsg);
		}
	rm_close();
	let_go(PROCESS_CHECKPOINTED);
	return CUDA_SUCCESS;
}

static bool begin_again(struct CUctx_st *c)
{
	c->tsg = engine_add(c->device, machine.timeslice_us * 1000);
	c->rm = c->tsg < 0 ? NULL : rm_context_create(c->device, c->tsg);
	if (!c->rm)
		return false;
	pthread_mutex_lock(&sim_lock);
	c->stop = false;
	bool begun = !context_start(c);
	sim_unlock();
	return begun;
}

static CUresult process_restore(void)
{
	if (!goes(PROCESS_CHECKPOINTED, CHANGING))
		return CUDA_ERROR_ILLEGAL_STATE;
	pthread_mutex_lock(&sim_lock);
	bool back = memory_back();
	sim_unlock();
	if (!back) {
		let_go(PROCESS_CHECKPOINTED);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	bool made = !rm_open();
	for (struct CUctx_st *c = sim_contexts; c && made; c = c->next)
		made = c->of || begin_again(c);
	let_go(made ? PROCESS_LOCKED : PROCESS_FAILED);
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult process_unlock(void)
{
	if (!goes(PROCESS_LOCKED, CHANGING))
		return CUDA_ERROR_ILLEGAL_STATE;
	let_go(PROCESS_RUNNING);
	return CUDA_SUCCESS;
}

// The driver cannot recover from an error.
static CUresult process_fail(void)
{
	if (!goes(PROCESS_CHECKPOINTED, CHANGING))
		return CUDA_ERROR_ILLEGAL_STATE;
	let_go(PROCESS_FAILED);
	return CUDA_SUCCESS;
}

// For tests: a request of another process, by a call that is not intercepted. "lock", "checkpoint", "restore" or "unlock"; "fail": no
// restore succeeds any more.
API CUresult simcuda_process(const char *what)
{
	return *what == 'l' ? process_lock(0) :
	       *what == 'f' ? process_fail() :
	       *what == 'c' ? process_checkpoint() :
	       *what == 'r' ? process_restore() :
			      process_unlock();
}

// Whether a call about a process can be carried out here.
static CUresult about(int pid)
{
	if (!sim_initialized || sim_forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (pid <= 0 || (kill(pid, 0) && errno == ESRCH))
		return CUDA_ERROR_INVALID_VALUE;
	return pid == getpid() && !sim_mps() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuCheckpointProcessGetState, (int pid, int *out), (pid, out))
{
	CUresult r = out ? about(pid) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	pthread_mutex_lock(&lock);
	*out = state != CHANGING ? state : was;
	pthread_mutex_unlock(&lock);
	return r;
}

CALL(cuCheckpointProcessGetRestoreThreadId, (int pid, int *out), (pid, out))
{
	CUresult r = out ? about(pid) : CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		*out = pid;
	return r;
}

struct lock_arguments { // CUcheckpointLockArgs
	unsigned timeout_ms, reserved;
	uint64_t reserved1[7];
};

CALL(cuCheckpointProcessLock, (int pid, const struct lock_arguments *a), (pid, a))
{
	CUresult r = about(pid);
	return r ? r : a && a->reserved ? CUDA_ERROR_INVALID_VALUE : process_lock(a ? a->timeout_ms : 0);
}

CALL(cuCheckpointProcessCheckpoint, (int pid, const void *a), (pid, a))
{
	CUresult r = about(pid);
	(void)a;
	return r ? r : process_checkpoint();
}

CALL(cuCheckpointProcessRestore, (int pid, const void *a), (pid, a))
{
	CUresult r = about(pid);
	(void)a;
	return r ? r : process_restore();
}

CALL(cuCheckpointProcessUnlock, (int pid, const void *a), (pid, a))
{
	CUresult r = about(pid);
	(void)a;
	return r ? r : process_unlock();
}
