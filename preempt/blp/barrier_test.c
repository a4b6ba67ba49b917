// barrier_test.c - with preempt/blp/barrier.c preempt/blp/host_block.c preempt/blp/crossing.c.
//
// An operation's domain ends while the operation is under way, and its place gets another one: that does not hear of the operation's end. Ends
// well or says what is wrong.
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "test/units/check.h"

#define CONTEXT ((CUcontext)0x10)
#define STREAM ((CUstream)0x20)

__typeof__(gp_driver) gp_driver;
_Atomic uint32_t gp_captures, blp_specials;
struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];
__thread bool blp_inside, blp_is_late;

// Stand-ins for functions that the file calls and the test does not need.
void blp_begin_late(CUcontext context) {}
void blp_come_behind(const struct gp_operation *o) {}
void blp_complete_to(struct gp_domain *d, struct blp_stream *s, uint64_t upto) {}
struct gp_domain *blp_domain_for(const struct gp_operation *o) { return blp_domains[0]; }
bool blp_enter(CUcontext context, bool *pushed) { return false; }
struct blp_stream *blp_find_stream(struct gp_domain *d, CUstream s, bool insert) { return &d->stream_of[0]; }
void blp_flush_but(const struct gp_domain *but, CUcontext context, CUstream s) {}
int blp_free_markers(struct gp_domain *d, int first, uint64_t upto) { return -1; }
bool blp_give_way_slowly(struct gp_domain *d) { return false; }
bool blp_is_special(CUcontext context, CUstream s) { return false; }
void blp_late_enters(void) {}
void blp_leave(bool pushed) {}
bool blp_mark_or_forget(struct gp_domain *d, struct blp_stream *s) { return true; }
int blp_marker_behind(struct gp_domain *d, int first, uint64_t upto) { return -1; }
uint64_t blp_patience(void) { return 0; }
void blp_pause(uint64_t since_ns) {}
bool blp_runs_on(struct gp_domain *d, struct blp_stream *s) { return false; }
bool blp_wait_or_let_run(struct gp_domain *d, struct blp_stream *s, uint64_t upto) { return true; }
bool blp_wait_resumed(struct gp_domain *d, uint64_t deadline_ns) { return true; }
void gp_blp_come_behind(CUstream s) {}
bool gp_blp_wanted(void) { return true; }
struct gp_context *gp_find_context(CUcontext handle) { return NULL; }
uint64_t gp_now_ns(void) { return 0; }

static uint32_t entered;
void blp_enter_own(struct blp_stream *s) { entered++; }

static uint32_t records;
static void (*meanwhile)(void); // as an event is recorded
static CUresult make_event(CUevent *e, unsigned flags) { return *e = (CUevent)(uintptr_t)0x100, 0; }
static CUresult query(CUevent e) { return CUDA_ERROR_NOT_READY; }
static CUresult record(CUevent e, CUstream s)
{
	records++;
	if (meanwhile)
		meanwhile();
	return 0;
}

static struct gp_domain domain = {.control = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};
static uint64_t number;

// A place of a stream, in a domain that the place of one has from here on.
static void begin(CUstream stream)
{
	domain.context = CONTEXT;
	domain.generation = ++number;
	domain.streams = 1;
	domain.host_blocked = 0;
	domain.free_marker = -1;
	domain.stream_of[0] = (struct blp_stream){.handle = stream, .first_marker = -1, .steps = {.first = -1}};
}

// As end in ends.c leaves it.
static void end(void)
{
	domain.context = NULL;
	domain.streams = 0;
}

// The place has a new domain: its stream has other counts.
static void begin_anew(void)
{
	end();
	begin(STREAM); // handles come again, too
	domain.stream_of[0].passing = 1;
	domain.host_blocked = 1;
}

static struct gp_operation under_way(void)
{
	struct gp_operation o = {.handle = CONTEXT, .stream = STREAM, .work = GP_OTHER, .cpu = true};
	begin(STREAM);
	blp_pass(&o);
	CHECK(o.passing == &domain.stream_of[0] && domain.stream_of[0].passing == 1 && domain.host_blocked == 1);
	records = entered = 0;
	return o;
}

static void stays(void)
{
	struct gp_operation o = under_way();
	blp_passed(&o);
	CHECK(records == 1);
	CHECK(!domain.stream_of[0].passing && domain.stream_of[0].host_blocked && domain.host_blocked == 1);
}

// Its events are destroyed.
static void ended(void)
{
	struct gp_operation o = under_way();
	end();
	domain.stream_of[0].thread = BLP_THREAD_LIVES;
	blp_enter_driver(&o);
	blp_passed(&o);
	CHECK(!records && !entered);
}

static void check_anew(void)
{
	const struct blp_stream *s = &domain.stream_of[0];
	CHECK(s->passing == 1 && !s->passed && !s->host_blocked && !s->host_block_behind);
	CHECK(domain.host_blocked == 1);
}

static void made_anew(void)
{
	struct gp_operation o = under_way();
	begin_anew();
	blp_passed(&o);
	CHECK(!records);
	check_anew();
}

static void made_anew_meanwhile(void)
{
	struct gp_operation o = under_way();
	meanwhile = begin_anew;
	blp_passed(&o);
	meanwhile = NULL;
	CHECK(records == 1);
	check_anew();
}

int main(void)
{
	blp_domains[0] = &domain;
	gp_driver.cuEventCreate = make_event;
	gp_driver.cuEventQuery = query;
	gp_driver.cuEventRecord = record;
	stays();
	ended();
	made_anew();
	made_anew_meanwhile();
	return 0;
}
