// event_test.c - with preempt/blp/event.c preempt/blp/events.c preempt/blp/states.c preempt/objects/objects.c.
//
// Records of events: handles and places come again, and what is asked of a record is never answered with another one. Ends well or says what
// is wrong.
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/objects/objects.h"
#include "test/units/check.h"

#define CONTEXT ((CUcontext)0x10)
#define OTHER_CONTEXT ((CUcontext)0x18)
#define STREAM ((CUstream)0x20)
#define QUEUE ((CUstream)0x30)

__typeof__(gp_driver) gp_driver;
struct gp_context gp_context[GP_CONTEXTS];
_Atomic uint32_t gp_captures, blp_specials;
_Atomic CUresult blp_error;
struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];
__thread bool blp_inside;
__thread uintptr_t gp_thread_distance;

static struct blp_entry entries[BLP_LOG];
static struct gp_domain domain[2] = {{.lock = PTHREAD_MUTEX_INITIALIZER}, {.lock = PTHREAD_MUTEX_INITIALIZER}};
static struct gp_domain *current = domain;
static bool logs; // launches are ahead, so that the record goes into the log

// Stands in for other files, for a stream that is neither host-blocked nor stopped.
struct gp_domain *blp_domain_for(const struct gp_operation *o) { return current; }
struct blp_stream *blp_find_stream(struct gp_domain *d, CUstream s, bool insert) { return &d->stream_of[0]; }
bool blp_related_pending(struct gp_domain *d, struct blp_stream *s) { return logs; }
bool blp_flush_others(struct gp_domain *d, CUcontext context, CUstream s) { return false; }
bool blp_is_host_blocked(struct gp_domain *d, struct blp_stream *s) { return false; }
bool blp_has_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes) { return true; }
bool blp_leave_own(struct blp_stream *s) { return true; }
struct blp_entry *blp_append(struct gp_domain *d, struct blp_stream *s, enum blp_kind kind, bool now, uint32_t bytes,
			     char **room)
{
	struct blp_entry *e = blp_entry_at(d, d->head++);
	d->recorded++;
	e->stage = BLP_QUEUED;
	return e;
}
void blp_appended(struct gp_domain *d, struct blp_stream *s) {}
void blp_begin_pass(struct gp_operation *o, struct gp_domain *d, struct blp_stream *s) {}
void blp_enter_driver(struct gp_operation *o) {}

// And what the test does not get to.
static _Atomic uint32_t stub;
void blp_begin_late(CUcontext context) { stub++; }
void blp_come_behind(const struct gp_operation *o) { stub++; }
void blp_complete_to(struct gp_domain *d, struct blp_stream *s, uint64_t upto) { stub++; }
void blp_end_take(void) { stub++; }
void blp_expect_stream(CUstream s, CUcontext context) { stub++; }
void blp_flush_ahead(CUcontext context) { stub++; }
void blp_forget_all(struct gp_domain *d) { stub++; }
bool blp_give_way_slowly(struct gp_domain *d) { return false; }
bool blp_has_ended(struct gp_domain *d, struct blp_stream *s, uint64_t upto) { return false; }
bool blp_make_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes) { return false; }
int blp_marker_behind(struct gp_domain *d, int first, uint64_t upto) { return -1; }
void blp_pass(struct gp_operation *o) { stub++; }
uint64_t blp_patience(void) { return 0; }
bool blp_runs_beside(struct gp_domain *d, struct blp_stream *s) { return false; }
bool blp_host_block(struct gp_domain *d, struct blp_stream *s, CUstream behind) { return true; }
void blp_unappend(struct gp_domain *d, struct blp_stream *s) { stub++; }
CUresult blp_wait_all(CUcontext context) { return 0; }
bool blp_wait_complete(struct gp_domain *d, struct blp_stream *s, uint64_t upto, uint64_t patience_ns) { return true; }
bool blp_wait_or_let_run(struct gp_domain *d, struct blp_stream *s, uint64_t upto) { return true; }
CUresult blp_wait_stream(CUstream s, CUcontext context) { return 0; }
bool blp_wait_turn(struct gp_domain *d, uint64_t deadline_ns) { return true; }
void gp_blp_expect_all(CUcontext context) { stub++; }
void gp_blp_flush_all(CUcontext context) { stub++; }
void gp_blp_flush_array(CUcontext context) { stub++; }
void gp_blp_flush_owner(CUdeviceptr p) { stub++; }
void gp_blp_loading(bool begins) { stub++; }
void gp_blp_retire(CUcontext whole) { stub++; }
bool gp_blp_unwant(void) { return false; }
bool gp_blp_may_load(CUcontext context, CUfunction function) { return false; }
struct gp_context *gp_find_context(CUcontext handle) { return gp_context; }
bool gp_graphs_record(void) { return false; }
void gp_log_line(const char *text) { stub++; }
void blp_give_up(struct gp_domain *d, const char *call, CUresult result) { stub++; }
_Atomic bool blp_retired;
void gp_ring_windows(struct gp_gpu *g) { stub++; }
void gp_notify(void) { stub++; }
void gp_thread_make(void) { stub++; } // the test has one thread
CUcontext gp_primary_context(CUcontext handle) { return handle; }

// The driver.
static CUresult get_current(CUcontext *context)
{
	*context = CONTEXT;
	return 0;
}
static uint32_t records, waits;
static CUresult exchange(int *mode) { return 0; }
static CUresult record_event(CUevent e, CUstream s) { return records += s == QUEUE, 0; }
static CUresult wait_event(CUstream s, CUevent e, unsigned flags) { return waits += s == QUEUE, 0; }
static CUresult query(CUevent e) { return CUDA_ERROR_NOT_READY; }

static CUevent handle(uintptr_t i) { return (CUevent)(i << 4); }

static CUcontext recorded_in = CONTEXT;

// Returns the sequence + 1 of its entry; 0: it is recorded past the log.
static uint64_t record(CUevent event, bool in_log)
{
	struct gp_operation o = {.handle = recorded_in, .stream = STREAM, .work = GP_RECORD, .event = event};
	logs = in_log;
	CHECK(!blp_record(&o)); // the driver is to record it
	if (!o.logging)
		return 0;
	CHECK(o.domain == current);
	blp_logged(&o);
	return current->head;
}

// Whether the event stands for that record: all three questions are answered alike.
static bool stands(struct gp_domain *d, CUevent event, uint64_t upto)
{
	records = waits = 0;
	blp_record_again(d, event, upto, QUEUE);
	bool waited = blp_wait_again(d, event, upto, QUEUE),
	     asked = blp_query_record(d, event, upto) == CUDA_ERROR_NOT_READY;
	CHECK(waited == asked && waited == records && waited == waits);
	return asked;
}

// An event stands for its latest record, and for none where that is not in the log or the event was destroyed.
static void later_ones(void)
{
	CUevent event = handle(1);
	uint64_t first = record(event, true);
	CHECK(first && stands(domain, event, first));
	CHECK(!stands(domain, event, first + 1) && !stands(domain, handle(2), first));
	CHECK(!stands(&domain[1], event, first)); // as many entries are in the log of another domain
	uint64_t second = record(event, true);
	CHECK(!stands(domain, event, first) && stands(domain, event, second));
	CHECK(!record(event, false));
	CHECK(!stands(domain, event, second));

	second = record(event, true);
	blp_event_captured(event);
	CHECK(!stands(domain, event, second));

	second = record(event, true);
	gp_object_end(GP_EVENT, event);
	CHECK(!stands(domain, event, second));
	uint64_t third = record(event, true); // the handle came again
	CHECK(!stands(domain, event, second) && stands(domain, event, third));

	gp_blp_event_shared(event); // other processes may record it: the log knows nothing of it
	CHECK(!record(event, true) && !stands(domain, event, third));
	gp_object_end(GP_EVENT, event);
	CHECK(record(event, true)); // the next one of the handle is not shared
	gp_object_end(GP_EVENT, event);
}

// A domain ends, and the next one in its place counts its entries from 0 on.
static void later_domains(void)
{
	CUevent event = handle(1), other = handle(2);
	uint64_t upto = record(event, true);
	current = &domain[1];
	uint64_t kept = record(other, true);
	blp_forget_events(domain);
	CHECK(!stands(domain, event, upto) && stands(&domain[1], other, kept));
	current = domain;
	domain[0].head = 0;
	CHECK(record(other, true) == 1 && !stands(domain, event, 1) && stands(domain, other, 1));
	gp_object_end(GP_EVENT, event);
	gp_object_end(GP_EVENT, other);
}

// Events that the program leaves to their context end with it, and leave their places.
static void later_contexts(void)
{
	CUevent event = handle(1), other = handle(2), shared = handle(3);
	uint64_t upto = record(event, true);
	gp_blp_event_shared(shared);
	blp_event_captured(other);
	gp_objects_set_apart(OTHER_CONTEXT);
	gp_objects_destroyed(OTHER_CONTEXT, true);
	CHECK(stands(domain, event, upto) && !record(shared, true) && gp_object_find(GP_EVENT, other, NULL));
	gp_objects_set_apart(CONTEXT);
	gp_objects_destroyed(CONTEXT, true);
	CHECK(!gp_object_find(GP_EVENT, event, NULL) && !gp_object_find(GP_EVENT, other, NULL) &&
	      !gp_object_find(GP_EVENT, shared, NULL));
	CHECK(record(shared, true)); // the next one of the handle is not shared
	gp_objects_set_apart(CONTEXT);
	gp_objects_destroyed(CONTEXT, true);
}

enum { PROBES = 64, PLACES = 1 << 14 };

// Events whose search begins at the table's last place, and goes on at its first one.
static void full(void)
{
	CUevent event[PROBES + 1];
	uint64_t upto[PROBES + 1];
	int n = 0;
	for (uintptr_t i = 3; n < PROBES + 1; i++)
		if ((uintptr_t)handle(i) * 0x9E3779B97F4A7C15ull >> 50 == PLACES - 1)
			event[n++] = handle(i);
	for (n = 0; n < PROBES; n++)
		CHECK((upto[n] = record(event[n], true)));
	CHECK(!record(event[PROBES], true)); // without a place it is recorded past the log
	for (n = 0; n < PROBES; n++)
		CHECK(stands(domain, event[n], upto[n]));

	enum { GONE = 5, LATER = 20 };
	gp_object_end(GP_EVENT, event[GONE]);
	for (n = 0; n < PROBES; n++)
		CHECK(stands(domain, event[n], upto[n]) == (n != GONE)); // also those that are behind it
	uint64_t anew = record(event[LATER], true);                      // it has a place behind the one that is free
	CHECK(stands(domain, event[LATER], anew));
	gp_object_end(GP_EVENT, event[LATER]);
	CHECK(!stands(domain, event[LATER], anew) && !stands(domain, event[LATER], upto[LATER]));
	upto[GONE] = record(event[PROBES], true);
	CHECK(upto[GONE] && stands(domain, event[PROBES], upto[GONE]));
	CHECK(record(event[GONE], true) && !record(handle(1 << 20), false));
	for (n = 0; n < PROBES; n++)
		CHECK(stands(domain, event[n], upto[n]) == (n != GONE && n != LATER));

	// One is shared that has no place. From then on each that is not known counts as shared, also where there is room again.
	gp_blp_event_shared(event[LATER]);
	gp_object_end(GP_EVENT, event[0]);
	CHECK(!record(event[LATER], true));
}

// An event goes on, alone or with its context: what was known of it still is. Another context may be current while it is shared or captured.
static void kept(void)
{
	CUevent event = handle(1);
	recorded_in = OTHER_CONTEXT;
	CHECK(!record(event, false));
	recorded_in = CONTEXT;
	blp_event_captured(event);
	gp_blp_event_shared(event);
	gp_objects_set_apart(CONTEXT); // which is another's
	gp_objects_destroyed(CONTEXT, true);
	CHECK(gp_object_find(GP_EVENT, event, NULL));
	gp_objects_set_apart(OTHER_CONTEXT);
	gp_objects_destroyed(OTHER_CONTEXT, false);
	CHECK(gp_object_find(GP_EVENT, event, NULL));
	gp_object_set_apart(GP_EVENT, event);
	gp_object_destroyed(GP_EVENT, event, false);
	CHECK(!record(event, true) && record(handle(2), true)); // it is shared, and no other
	gp_object_end(GP_EVENT, event);
	gp_object_end(GP_EVENT, handle(2));
}

int main(void)
{
	gp_driver.cuThreadExchangeStreamCaptureMode = exchange;
	gp_driver.cuCtxGetCurrent = get_current;
	gp_driver.cuEventRecord = record_event;
	gp_driver.cuStreamWaitEvent = wait_event;
	gp_driver.cuEventQuery = query;
	for (int i = 0; i < 2; i++) {
		domain[i].context = CONTEXT;
		domain[i].log = entries;
		domain[i].streams = 1;
		domain[i].stream_of[0] = (struct blp_stream){.handle = STREAM, .first_marker = -1};
		blp_domains[i] = &domain[i];
	}
	later_ones();
	later_domains();
	later_contexts();
	kept();
	full();
	return 0;
}
