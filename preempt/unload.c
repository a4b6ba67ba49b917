// unload.c - the program unloads modules and libraries.
//
// Launches in the log use the code, also where the driver takes them for complete since they were cut. So the log is waited for before
// the driver's function is called. But that waits, too, for all that the context has by then, and without the driver's lock: what other
// threads launch meanwhile is not held up, and may wait for the calling thread. So the program's call waits as cuCtxSynchronize does: for
// what was there when it began. The driver's function is called on a thread of the library's. The program's call waits for it a while
// only, since the program may want the memory next. Until it has returned, the driver gives the handle, and those of functions, to
// nothing else.
//
// Where the log has nothing, the driver's function is called at once.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"

#include <limits.h>
#include <stdlib.h>

enum { THREADS = 8 }; // at once; others wait for one to be free
static const uint64_t PATIENCE_NS = 1000000000;

struct unload {
	struct unload *next;
	CUcontext context; // current as the program called; of a library maybe NULL
	CUmodule module;   // NULL: it is a library
	CUlibrary library;
	struct gp_substitute substitute; // of the library
	bool begun, over;                // begun: a thread sees to it
	uint32_t users;                  // the list, and threads that wait
};

static struct {
	pthread_mutex_t lock; // of what follows
	struct unload *first;
	uint32_t threads;
	_Atomic uint32_t ended; // unloads, ever; a futex
} unloads = {.lock = PTHREAD_MUTEX_INITIALIZER};

// In the context that is current.
static CUresult call_driver(const struct unload *u)
{
	if (u->module)
		return gp_driver.cuModuleUnload(u->module);
	gp_substitute_unload(&u->substitute);
	return gp_driver.cuLibraryUnload(u->library);
}

// Called with the lock, down to gp_unloads_finish.

static void release(struct unload *u)
{
	if (!--u->users)
		free(u);
}

static void finish(struct unload *u)
{
	struct unload **at = &unloads.first;
	while (*at != u)
		at = &(*at)->next;
	*at = u->next;
	u->over = true;
	unloads.ended++;
	gp_futex_wake(&unloads.ended, INT_MAX, false);
	release(u);
}

// Gives the lock up meanwhile.
static void carry_out(struct unload *u)
{
	u->begun = true;
	pthread_mutex_unlock(&unloads.lock);
	CUcontext popped;
	bool enters = u->context && !gp_driver.cuCtxPushCurrent(u->context);
	gp_wait_begin(GP_WAIT_CONTEXT, NULL);
	if (enters || !u->module) // what was in a context that has ended is gone
		call_driver(u);
	gp_wait_end(GP_WAIT_CONTEXT, NULL, CUDA_SUCCESS);
	if (enters)
		gp_driver.cuCtxPopCurrent(&popped);
	pthread_mutex_lock(&unloads.lock);
	finish(u);
}

static struct unload *next(void)
{
	struct unload *u = unloads.first;
	while (u && u->begun)
		u = u->next;
	return u;
}

static void *carry_out_all(void *unused)
{
	(void)unused;
	gp_relax_captures(); // others may capture by now
	pthread_mutex_lock(&unloads.lock);
	for (struct unload *u; (u = next());)
		carry_out(u);
	unloads.threads--;
	pthread_mutex_unlock(&unloads.lock);
	return NULL;
}

static bool start_thread(void)
{
	pthread_t thread;
	return gp_thread_start(&thread, carry_out_all, NULL) && !pthread_detach(thread);
}

// Waits until it is over, at most for the patience. Gives the lock up meanwhile.
static bool wait_for(struct unload *u)
{
	uint64_t now, deadline = gp_now_ns() + PATIENCE_NS;
	u->users++;
	while (!u->over && (now = gp_now_ns()) < deadline) {
		uint32_t ended = unloads.ended;
		pthread_mutex_unlock(&unloads.lock);
		gp_futex_wait(&unloads.ended, ended, deadline - now, false);
		pthread_mutex_lock(&unloads.lock);
	}
	bool over = u->over;
	release(u);
	return over;
}

// From here on without the lock.

void gp_unloads_finish(CUcontext context)
{
	pthread_mutex_lock(&unloads.lock);
	for (struct unload *u = unloads.first; u;) {
		if (u->context != context) {
			u = u->next;
			continue;
		}
		if (!u->begun)
			carry_out(u);
		else
			wait_for(u); // as long as it takes: it waits for what the context has, as the end of that does
		u = unloads.first;
	}
	pthread_mutex_unlock(&unloads.lock);
}

bool gp_unloads_await(void)
{
	pthread_mutex_lock(&unloads.lock);
	bool over = unloads.first && wait_for(unloads.first);
	pthread_mutex_unlock(&unloads.lock);
	return over;
}

// The program has unloaded it already, but the driver does not know yet, or another thread unloads it now.
static bool refuses(const void *handle, CUresult *result)
{
	*result = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&unloads.lock);
	const struct unload *u = handle ? unloads.first : NULL;
	while (u && u->module != handle && u->library != handle)
		u = u->next;
	pthread_mutex_unlock(&unloads.lock);
	return u;
}

// To synchronize the context would end captures there. Then only the log is waited for.
static CUresult synchronize(void)
{
	int cancel;
	if (!gp_captures_keep_off(&cancel))
		return CUDA_SUCCESS;
	CUresult result = gp_driver.cuCtxSynchronize();
	gp_captures_let_on(cancel);
	return result;
}

// Waits for what the current context has now. False: the driver refused, and is to tell the program.
static bool wait_for_all(CUcontext context)
{
	CUcontext whole = gp_primary_context(context); // a primary context and its green ones use the same code
	gp_wait_begin(GP_WAIT_CONTEXT, NULL);
	gp_blp_expect_all(whole);
	CUresult result = synchronize();
	if (!result && !gp_blp_wait_expected(whole))
		result = synchronize();
	gp_wait_end(GP_WAIT_CONTEXT, NULL, result);
	return !result;
}

// It is in the list before it is forgotten: a thread that finds it forgotten finds it there, until the driver has unloaded it.
static bool take(struct unload *u)
{
	struct unload **last = &unloads.first;
	pthread_mutex_lock(&unloads.lock);
	while (*last)
		last = &(*last)->next;
	*last = u;
	u->begun = true;
	u->users = 1;
	pthread_mutex_unlock(&unloads.lock);
	if (u->module ? gp_module_take(u->module, u->context) : gp_library_take(u->library, &u->substitute))
		return true;
	pthread_mutex_lock(&unloads.lock);
	finish(u);
	pthread_mutex_unlock(&unloads.lock);
	return false;
}

// Hands it over, where a thread can be had, and waits within the patience.
static bool hand_over(struct unload *u)
{
	pthread_mutex_lock(&unloads.lock);
	if (unloads.threads < THREADS && start_thread())
		unloads.threads++;
	bool handed = unloads.threads;
	if (handed) {
		u->begun = false;
		wait_for(u);
	}
	pthread_mutex_unlock(&unloads.lock);
	return handed;
}

static CUresult unload(struct unload *u, bool logged)
{
	if (logged && hand_over(u))
		return CUDA_SUCCESS;
	gp_wait_begin(GP_WAIT_CONTEXT, NULL);
	CUresult result = gp_wait_end(GP_WAIT_CONTEXT, NULL, call_driver(u));
	pthread_mutex_lock(&unloads.lock);
	finish(u);
	pthread_mutex_unlock(&unloads.lock);
	return result;
}

// logged: the log had something of what the call waits for.
static bool take_and_unload(const struct unload *given, bool logged, CUresult *result)
{
	struct unload *u = malloc(sizeof *u);
	if (!u)
		return false;
	*u = *given;
	if (!take(u)) // another thread has
		return refuses(given->module ? (void *)given->module : (void *)given->library, result);
	*result = unload(u, logged);
	return true;
}

bool gp_unload_module(CUmodule module, CUresult *result)
{
	struct unload u = {.context = gp_current_handle(), .module = module};
	if (!gp_blp_started || !gp_driver.cuModuleUnload)
		return false;
	if (!gp_module_is_known(module, u.context))
		return refuses(module, result);
	bool logged = gp_blp_has_log(gp_primary_context(u.context));
	return (!logged || wait_for_all(u.context)) && take_and_unload(&u, logged, result);
}

// In which contexts the library is used, and for which the driver waits, is not known: the wait for the log is bounded, and what was waited
// for in vain runs to its end.
bool gp_unload_library(CUlibrary library, CUresult *result)
{
	struct unload u = {.context = gp_current_handle(), .library = library};
	if (!gp_blp_started || !gp_driver.cuLibraryUnload)
		return false;
	if (!gp_library_is_known(library))
		return refuses(library, result);
	bool logged = gp_blp_has_log(NULL);
	if (logged)
		gp_blp_flush_all(NULL);
	return take_and_unload(&u, logged, result);
}
