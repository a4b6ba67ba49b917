// mps.c - priorities of a process under an MPS server, where all processes share one TSG and nothing but the
// priority of streams says whose blocks go first. Whether they share one is known once there is a context (process/rm.c).
//
// An MPS client's streams without a priority of their own (the default streams) have that of the client, which libcuda
// reads from CUDA_MPS_CLIENT_PRIORITY as it connects to the server: 0 is normal, 1 below normal (NVIDIA's documentation
// of MPS). By then the program may have threads that read the environment, so nothing can be put into it. The library
// puts the variable there when it is loaded, with another first letter. It gives the variable its own letter when the driver is
// initialised: if the configuration wants it, a server runs, and the program has not made its own choice.
// Programs that are started from here inherit it; a second variable tells them whose it is, and with another role they
// take it out.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRIORITY "UDA_MPS_CLIENT_PRIORITY"
#define MARK "PREEMPT_SET_MPS_PRIORITY"

static char priority[] = "_" PRIORITY "=1", mark[] = "_" MARK "=1";
static bool prepared;

static bool has_control(const char *directory)
{
	char path[4096];
	int length = snprintf(path, sizeof path, "%s/control", directory);
	return length > 0 && length < (int)sizeof path && !access(path, F_OK);
}

bool gp_mps_server_runs(void)
{
	static const char *const usual[] = {GP_MPS_DIRECTORIES};
	const char *named = gp_environment(GP_MPS_PIPE_DIRECTORY);
	bool found = false;

	if (named && *named)
		return has_control(named);
	for (size_t i = 0; i < sizeof usual / sizeof *usual && !found; i++)
		found = has_control(usual[i]);
	return found;
}

// Before the program has threads.
__attribute__((constructor)) static void prepare(void)
{
	const char *role = getenv("GPREEMPT_PRIORITY"), *inherited = getenv("C" PRIORITY);

	if (getenv("G" MARK)) { // the process that started this one set it
		if (inherited && !strcmp(inherited, "1"))
			unsetenv("C" PRIORITY);
		unsetenv("G" MARK);
	}
	unsetenv("_" PRIORITY);
	unsetenv("_" MARK);
	if (role && (!strcmp(role, "be") || !strcmp(role, "7")))
		prepared = !putenv(mark) && !putenv(priority);
}

void gp_mps_lower_client(void)
{
	if (!prepared || gp_environment(GP_MPS_CLIENT_PRIORITY) || !gp_mps_server_runs()) // the program's own choice stays
		return;
	__atomic_store_n(&mark[0], 'G', __ATOMIC_RELEASE);
	__atomic_store_n(&priority[0], 'C', __ATOMIC_RELEASE);
}

// Streams that were made with another priority than the program asked for.

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct asked {
	CUcontext context;
	CUstream stream;
	int priority;
} *asked;
static size_t count, capacity;

static struct asked *find(CUcontext context, CUstream stream)
{
	for (size_t i = 0; i < count; i++)
		if (asked[i].context == context && asked[i].stream == stream)
			return &asked[i];
	return NULL;
}

// Levels are spread over the priorities that there are: numerically from greatest, below 0, to least.
bool gp_stream_creating(int *priority)
{
	struct gp_context *c = gp_current_context();
	int least = 0, greatest = 0;

	if (!c || !gp_settings.mps || !c->gpu->mps || !gp_driver.cuCtxGetStreamPriorityRange ||
	    gp_driver.cuCtxGetStreamPriorityRange(&least, &greatest) || least <= greatest)
		return false;
	*priority = greatest + (least - greatest) * (int)gp_settings.level / (int)(GP_LEVELS - 1);
	return true;
}

void gp_stream_created(CUstream stream, int priority)
{
	struct gp_context *c = gp_current_context();
	int least = 0, greatest = 0;

	if (!c || gp_driver.cuCtxGetStreamPriorityRange(&least, &greatest))
		return;
	priority = priority > least ? least : priority < greatest ? greatest : priority; // as the driver would
	pthread_mutex_lock(&lock);
	struct asked *a = find(c->handle, stream);
	if (!a && count == capacity) {
		size_t more = capacity ? 2 * capacity : 64;
		struct asked *grown = realloc(asked, more * sizeof *asked);
		if (grown) {
			asked = grown;
			capacity = more;
		}
	}
	if (!a && count < capacity)
		a = &asked[count++];
	if (a) // else the program hears what is in force
		*a = (struct asked){c->handle, stream, priority};
	pthread_mutex_unlock(&lock);
}

void gp_stream_priority(CUstream stream, int *priority)
{
	CUcontext context = NULL, owner;

	if (gp_driver.cuCtxGetCurrent(&context))
		return;
	if (gp_driver.cuStreamGetCtx && !gp_driver.cuStreamGetCtx(stream, &owner))
		context = owner; // a program may ask in any context
	pthread_mutex_lock(&lock);
	struct asked *a = find(context, stream);
	if (a)
		*priority = a->priority;
	pthread_mutex_unlock(&lock);
}

static void forget(CUcontext context, CUstream stream) // NULL: all
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count;)
		if ((!context || asked[i].context == context) && (!stream || asked[i].stream == stream))
			asked[i] = asked[--count];
		else
			i++;
	pthread_mutex_unlock(&lock);
}

void gp_mps_forget_stream(CUstream stream)
{
	if (stream)
		forget(NULL, stream);
}

void gp_mps_forget_context(CUcontext context) { forget(context, NULL); }
