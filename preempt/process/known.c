// known.c - the streams that the program has made, and a wait for all of a context that is none for the context.
//
// The driver's wait for a context waits for everything in it, also for what is the library's. A wait for each stream of the program does
// not: by events, which outlive a stream that another thread destroys meanwhile. Streams are in a table from when they are made. The legacy
// stream stands for those that each thread has by default: an event there comes behind what they have. Only where hold.while_synchronizing
// is set.
#define _GNU_SOURCE
#include "preempt/process/process.h"

enum { KNOWN = 1024, MOST_EVENTS = 64 };

static struct known {
	CUcontext context;
	CUstream stream; // NULL: free, unless it is loose
	uint64_t destroyed; // number of the destruction of a stream that had work, which only a wait for the context waits for; 0: none
} known[KNOWN];
static uint32_t places; // ever used
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t destructions;
static _Atomic bool unknown; // there are, or were, streams that the table does not have

static void add(CUcontext context, CUstream stream)
{
	uint32_t i = 0;
	while (i < places && (known[i].stream || known[i].destroyed))
		i++;
	if (i == KNOWN) {
		unknown = true;
		return;
	}
	places = i < places ? places : i + 1;
	known[i] = (struct known){context, stream, 0};
}

void gp_stream_made(CUstream stream)
{
	if (!gp_settings.hold_synchronize)
		return;
	CUcontext context = stream ? gp_current_handle() : NULL;
	pthread_mutex_lock(&lock);
	if (context)
		add(context, stream);
	else
		unknown = true;
	pthread_mutex_unlock(&lock);
}

void gp_known_stream_ends(CUstream stream)
{
	if (!gp_settings.hold_synchronize)
		return;
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < places; i++)
		if (known[i].stream == stream) {
			known[i].stream = NULL;
			if (gp_capturing() || gp_driver.cuStreamQuery(stream) != CUDA_SUCCESS)
				known[i].destroyed = ++destructions;
		}
	pthread_mutex_unlock(&lock);
}

uint64_t gp_known_destructions(void)
{
	pthread_mutex_lock(&lock);
	uint64_t count = destructions;
	pthread_mutex_unlock(&lock);
	return count;
}

void gp_known_synchronized(CUcontext context, uint64_t since)
{
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < places; i++)
		if (known[i].context == context && known[i].destroyed <= since)
			known[i].destroyed = 0;
	pthread_mutex_unlock(&lock);
}

void gp_known_context_ends(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < places; i++)
		if (known[i].context == context)
			known[i] = (struct known){NULL};
	pthread_mutex_unlock(&lock);
}

// Records an event behind what a stream holds, if that is unfinished.
static bool mark(CUstream stream, CUevent *events, int *count)
{
	CUresult result = gp_driver.cuStreamQuery(stream);
	if (result != CUDA_ERROR_NOT_READY)
		return result == CUDA_SUCCESS; // if not, the driver is to tell the program
	if (*count == MOST_EVENTS || gp_driver.cuEventCreate(&events[*count], CU_EVENT_DISABLE_TIMING))
		return false;
	return !gp_driver.cuEventRecord(events[(*count)++], stream);
}

// Under the lock no stream is destroyed. No capture is under way: it would end.
static bool mark_all(CUcontext context, CUevent *events, int *count)
{
	pthread_mutex_lock(&lock);
	bool marked = !unknown && mark(GP_STREAM_LEGACY, events, count);
	for (uint32_t i = 0; i < places && marked; i++)
		if (known[i].context == context)
			marked = known[i].stream ? mark(known[i].stream, events, count) : !known[i].destroyed;
	pthread_mutex_unlock(&lock);
	return marked;
}

bool gp_wait_for_streams(CUcontext context)
{
	CUevent events[MOST_EVENTS];
	int count = 0;
	if (!context || unknown || !gp_driver.cuEventCreate || !gp_driver.cuEventRecord ||
	    !gp_driver.cuEventSynchronize || !gp_captures_keep_off())
		return false;
	bool reached = mark_all(context, events, &count);
	gp_captures_let_on();
	for (int i = 0; i < count; i++) {
		reached = reached && !gp_driver.cuEventSynchronize(events[i]);
		gp_driver.cuEventDestroy(events[i]);
	}
	return reached;
}
