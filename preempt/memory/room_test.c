// room_test.c - with preempt/memory/room.c preempt/memory/device.c preempt/driver/driver.c preempt/process/process.c.
//
// A call that waits for room hears that there is enough, and is refused.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"
#include "test/units/check.h"

#include <stdlib.h>
#include <unistd.h>

enum { WANTED = 1 << 30, REFUSALS = 1000, LIMIT_s = 60 };
static const uint64_t TOTAL = 10ull << 30;

struct gp_memory gp_memory[GP_GPUS];
struct gp_memory_settings gp_memory_settings;
_Atomic uint32_t gp_memory_counts = 1;
static uint64_t free_bytes;
static uint64_t total_told = 10ull << 30;
static unsigned asked;
static _Atomic bool end;

static CUresult get_info(size_t *free, size_t *total)
{
	asked++;
	*free = free_bytes;
	*total = total_told;
	return CUDA_SUCCESS;
}

static CUresult total_bytes(size_t *bytes, CUdevice device)
{
	*bytes = TOTAL;
	return CUDA_SUCCESS;
}

struct gp_context *gp_current_context(void) { return NULL; }
static unsigned lines;
void gp_log_line(const char *line) { lines++; }

static void give_way(struct gp_gpu *g, bool on) {}
struct gp_memory_others gp_memory_others = {.give_way = give_way};
uint32_t gp_memory_step_out(void) { return 0; }
void gp_memory_step_in(uint32_t depth) {}
struct gp_context *gp_memory_try_context(const struct gp_gpu *g) { return (struct gp_context *)g; }
void gp_memory_leave_context(struct gp_context *c) {}
uint64_t gp_pools_reserved(const struct gp_gpu *g) { return 0; }
uint64_t gp_rm_memory(const struct gp_gpu *g) { return 0; }
void gp_account_claim(struct gp_gpu *g, uint64_t bytes, struct gp_retry *r) { r->claim = bytes; }
void gp_memory_call_over(struct gp_retry *r) { r->claim = 0; }

// Says that there is enough for the call that waits.
static void *agent(void *unused)
{
	while (!end) {
		if (gp_memory[0].waiting) {
			gp_memory_room_changed(0, TOTAL, true);
		}
		usleep(50);
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;
	struct gp_retry taken = {0}, refused = {0}, unknown = {0};
	gp_driver.cuMemGetInfo = get_info;
	gp_driver.cuDeviceTotalMem = total_bytes;
	gp_settings.level = GP_LEVELS - 1;
	gp_memory_settings.asks = true;
	CHECK(!pthread_create(&thread, NULL, agent, NULL));

	free_bytes = WANTED / 2; // whenever this call is made, another has been faster
	for (int i = 0; i < REFUSALS; i++)
		CHECK(gp_memory_wait_for_room(gp_gpu, WANTED, &taken));
	CHECK(!taken.refused && asked == REFUSALS - 1); // the first refusal has waited for nothing
	CHECK(taken.claim == WANTED);                   // until the call is over

	free_bytes = TOTAL; // the driver does not have it in one piece, say
	int waits = 0;
	while (gp_memory_wait_for_room(gp_gpu, WANTED, &refused))
		CHECK(++waits < REFUSALS);
	waits = 0;
	while (gp_memory_wait_again(&unknown, gp_gpu))
		CHECK(++waits < REFUSALS && unknown.claim);
	CHECK(!unknown.claim);

	// Refusals at a cap, which the driver tells of or not.
	uint64_t total = TOTAL;
	for (int told = 0; told < 2; told++) {
		struct gp_retry capped = {0};
		struct gp_segment *s = calloc(1, sizeof *s);
		free_bytes = told ? WANTED / 2 : TOTAL;
		total_told = told ? 2ull * WANTED : total;
		gp_gpu[0].segment = s;
		gp_gpu[0].slot = 1;
		gp_memory[0].resident = WANTED; // as the call counts it
		uint64_t waits = gp_memory[0].waits;
		for (int i = 1; i <= 3; i++) {
			gp_memory_refused(gp_gpu, WANTED, &capped);
			CHECK(gp_memory_wait_for_room(gp_gpu, WANTED, &capped) == (i < 3));
		}
		CHECK(gp_memory[0].waits == waits && lines == 1);

		gp_gpu[0].segment = NULL; // not attached yet, and what others have is not known
		gp_memory_refused(gp_gpu, WANTED, &capped);
		CHECK(capped.at_cap == !told);
		gp_gpu[0].segment = s;

		// Memory of others is in the way: then the cap says nothing, unless this process would be beyond it.
		s->members = 1;
		s->slot[0].memory.resident = TOTAL - WANTED;
		free_bytes = WANTED / 2;
		gp_memory_refused(gp_gpu, WANTED, &capped);
		CHECK(!capped.at_cap);
		s->slot[0].memory.resident = 0; // and nobody has measured what they do not publish
		gp_memory_refused(gp_gpu, WANTED, &capped);
		CHECK(!capped.at_cap);
		s->slot[0].memory.resident = UINT64_MAX; // whatever they say
		s->slot[0].memory.other = UINT64_MAX;
		gp_memory_refused(gp_gpu, WANTED, &capped);
		CHECK(!capped.at_cap);
		gp_memory[0].resident = 2ull * WANTED + 1;
		gp_memory_refused(gp_gpu, WANTED, &capped);
		CHECK(capped.at_cap == (told != 0));
		gp_memory[0].resident = 0;
		gp_gpu[0].segment = NULL;
		free(s);
	}
	end = true;
	CHECK(!pthread_join(thread, NULL));

	struct gp_retry alone = {0};
	free_bytes = 0;
	gp_helper_gone = 1; // there is no agent
	alarm(LIMIT_s);
	CHECK(!gp_memory_wait_for_room(gp_gpu, WANTED, &alone));
	return 0;
}
