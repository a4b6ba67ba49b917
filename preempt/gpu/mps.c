// mps.c - priorities of a process under an MPS server. All processes share one TSG there, and only the priority of streams says whose
// blocks go first. A context's creation shows whether they share one (process/rm.c).
//
// An MPS client's streams without a priority of their own (the default streams) have that of the client. libcuda reads it from
// CUDA_MPS_CLIENT_PRIORITY as it connects to the server: 0 is normal, 1 below normal (NVIDIA's documentation of MPS). By then the program
// may have threads that read the environment, so nothing can be put into it. The library puts the variable there when it is loaded, with
// another first letter. It gives the variable its own letter when the driver is initialised: if the configuration wants it, a server
// runs, and the program has not made its own choice. Programs that are started from here inherit it; a second variable tells them whose
// it is, and with another role they take it out.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/objects/objects.h"

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

_Atomic bool gp_mps_lowered;

void gp_mps_lower_client(void)
{
	const char *own = gp_environment(GP_MPS_CLIENT_PRIORITY); // the program's own choice stays
	if (own && !strcmp(own, "1"))
		gp_mps_lowered = true;
	if (!prepared || own || !gp_mps_server_runs())
		return;
	__atomic_store_n(&mark[0], 'G', __ATOMIC_RELEASE);
	__atomic_store_n(&priority[0], 'C', __ATOMIC_RELEASE);
	gp_mps_lowered = true;
}

// Streams that were made with another priority than the program asked for.

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
	gp_objects_lock(GP_STREAM);
	struct gp_object *o = gp_object_enter(GP_STREAM, stream, c->handle);
	if (o) { // else the program hears what is in force
		o->stream.asked = priority;
		o->stream.lowered = true;
	}
	gp_objects_unlock(GP_STREAM);
}

static CUcontext owner_of(CUstream stream) // a program may ask in any context
{
	CUcontext context = NULL, owner;
	if (gp_driver.cuCtxGetCurrent(&context))
		return NULL;
	return gp_driver.cuStreamGetCtx && !gp_driver.cuStreamGetCtx(stream, &owner) ? owner : context;
}

void gp_stream_priority(CUstream stream, int *priority)
{
	const struct gp_object *o = gp_object_find(GP_STREAM, stream, owner_of(stream));
	if (o && o->stream.lowered)
		*priority = o->stream.asked;
}

void gp_stream_has_priority(CUstream stream)
{
	struct gp_object *o = gp_object_find(GP_STREAM, stream, owner_of(stream));
	if (o)
		o->stream.lowered = false;
}
