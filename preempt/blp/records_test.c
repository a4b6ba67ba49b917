// records_test.c - with preempt/blp/records.c preempt/driver/environment.c.
//
// The words of an arena that the writes change, and in how many rows, with channels taken and without, on an invented driver. Ends well
// or says what is wrong.
#include "preempt/blp/domain.h"
#include "test/units/check.h"

#include <stdlib.h>
#include <string.h>

__typeof__(gp_driver) gp_driver;
struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];
__thread bool blp_inside __attribute__((tls_model("initial-exec")));
void blp_give_up(struct gp_domain *d, const char *call, CUresult result) { CHECK(!call); }

enum {
	WORDS = sizeof(struct gpreempt_record) / sizeof(uint32_t),
	RECORDS = BLP_RECORDS + BLP_GRANULES * BLP_GRANULE,
	OLD = 0x5a5a5a5a
};
static uint32_t (*arena)[WORDS];
static struct gp_domain domain, other;
static size_t fewest_rows, values, copies;

static CUresult copy_rows(const void *copy, CUstream s)
{
	const struct gp_copy_2d *c = copy;
	fewest_rows = c->height < fewest_rows ? c->height : fewest_rows;
	for (size_t i = 0; i < c->height; i++)
		memcpy((char *)(uintptr_t)c->to.device + i * c->to.pitch,
		       (const char *)c->from.host + i * c->from.pitch, c->width_bytes);
	return 0;
}

static CUresult copy(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
	copies++;
	memcpy((void *)(uintptr_t)to, from, bytes);
	return 0;
}

static CUresult copy_back(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return 0;
}

static CUresult copy_any(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
	return copy(to, (const void *)(uintptr_t)from, bytes, s);
}

static CUresult write_value(CUstream s, CUdeviceptr to, uint32_t value, unsigned flags)
{
	values++;
	*(uint32_t *)(uintptr_t)to = value;
	return 0;
}

static void forget(void)
{
	memset(arena, 0x5a, RECORDS * sizeof *arena);
	fewest_rows = SIZE_MAX;
	values = copies = 0;
}

// Records from the first on, and no others but those ahead that may be frozen with them, or the rest of a granule.
static void freezes(uint32_t first, uint32_t count, bool lacks)
{
	uint32_t from = first, to = first + count, rest = count % BLP_LOG; // of the last copy
	forget();
	CHECK(blp_freeze(&domain, first, count));
	CHECK(!lacks || fewest_rows >= 64);
	if (lacks && count < BLP_APART && first < BLP_RECORDS)
		from = to - BLP_APART;
	else if (lacks && rest && rest < BLP_APART && first >= BLP_RECORDS)
		to += BLP_APART - rest;
	for (uint32_t r = 0; r < RECORDS; r++) {
		bool frozen = r >= from && r < to;
		CHECK(arena[r][offsetof(struct gpreempt_record, state) / sizeof(uint32_t)] ==
		      (frozen ? GPREEMPT_FROZEN : OLD));
		CHECK(arena[r][offsetof(struct gpreempt_record, count) / sizeof(uint32_t)] == OLD);
		CHECK(arena[r][offsetof(struct gpreempt_record, done) / sizeof(uint32_t)] == OLD);
	}
}

static void writes(bool lacks)
{
	static const uint32_t some[] = {1, 2, BLP_APART - 1, BLP_APART, 63, 64, 100, BLP_LOG, BLP_LOG + 1};
	for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
		freezes(BLP_APART, some[i], lacks);
		freezes(3 * BLP_REGION - some[i] % BLP_REGION, some[i], lacks);
		freezes(BLP_RECORDS + 5 * BLP_GRANULE, some[i], lacks);
	}
	for (int set = 0; set < 2; set++) {
		forget();
		CHECK(blp_set_flag(&domain, set));
		CHECK(!arena[0][0] == !set && arena[1][0] == OLD);
		CHECK(lacks ? !values && !copies && fewest_rows >= 64 : values == 1);
	}
	struct gpreempt_record record[3];
	for (uint32_t i = 0; i < 3 * WORDS; i++)
		((uint32_t *)record)[i] = i * 0x10203u;
	for (uint32_t count = 1; count <= 3; count++) {
		forget();
		CHECK(blp_copy_records(&domain, 7, count, record, true));
		CHECK(!memcmp(arena[7], record, count * sizeof *arena));
		CHECK(arena[6][WORDS - 1] == OLD && arena[7 + count][0] == OLD);
		CHECK(lacks ? fewest_rows >= 64 : copies == 1);
		forget();
		CHECK(!blp_zero(&domain, (CUdeviceptr)(uintptr_t)arena[7], count * sizeof *arena));
		CHECK(arena[6][WORDS - 1] == OLD && !arena[7][0] && !arena[6 + count][WORDS - 1] &&
		      arena[7 + count][0] == OLD);
		CHECK(lacks ? fewest_rows >= 64 : copies == 1);
	}
	forget();
	CHECK(!blp_zero(&domain, (CUdeviceptr)(uintptr_t)arena, BLP_ZEROS + sizeof *arena));
	CHECK(!arena[BLP_ZEROS / sizeof *arena][WORDS - 1] && arena[BLP_ZEROS / sizeof *arena + 1][0] == OLD);
}

// An image of so many records is read; when it is written back, those before the oldest in flight may have been zeroed.
static void image(uint32_t first, uint32_t count, uint32_t oldest, uint32_t written)
{
	uint32_t last = (first + count - 1) % BLP_RECORDS, each = 0;
	forget();
	for (uint32_t r = 0; r < RECORDS; r++)
		arena[r][0] = r;
	domain.first_record = first;
	domain.last_record = last;
	domain.oldest_record = first;
	CHECK(blp_copy_image(&domain, false));
	struct blp_entry e = {.record = last};
	CHECK(blp_record_of(&domain, &e)->count == last);
	for (uint32_t r = 0; r < RECORDS; r++)
		arena[r][0] = OLD;
	domain.oldest_record = oldest;
	CHECK(blp_copy_image(&domain, true));
	for (uint32_t r = 0; r < RECORDS; r++) {
		CHECK(arena[r][0] == r || arena[r][0] == OLD);
		each += arena[r][0] == r;
	}
	CHECK(each == written && (!written || arena[last][0] == last));
}

static void images(void)
{
	image(100, 1000, 100, 1000);
	image(100, 1000, 90, 1000); // what is before the first has no record
	image(100, 1000, 600, 500);
	image(100, 1000, 1099, 1);
	image(100, 1000, 1100, 0);
	image(100, 1000, 5000, 0);
	const uint32_t ahead = BLP_RECORDS - 500; // the ring's first records belong to no launch
	image(ahead, 1000, ahead, 1000 - BLP_APART);
	image(ahead, 1000, BLP_RECORDS - 1, 501 - BLP_APART);
	image(ahead, 1000, BLP_APART, 500 - BLP_APART);
	image(ahead, 1000, 499, 1);
	image(ahead, 1000, 500, 0);
	image(BLP_APART, 1, BLP_RECORDS - 1, 1);
	domain.first_record = 0; // none was in flight
	forget();
	CHECK(blp_copy_image(&domain, false) && blp_copy_image(&domain, true) && !copies);
}

static void busy(uint32_t streams, uint32_t host_blocked, bool lacks)
{
	domain.busy = streams;
	domain.host_blocked = host_blocked;
	CHECK(blp_may_lack_channels(&domain) == lacks);
}

int main(void)
{
	gp_driver.cuMemcpy2DAsync = copy_rows;
	gp_driver.cuMemcpyHtoDAsync = copy;
	gp_driver.cuMemcpyDtoHAsync = copy_back;
	gp_driver.cuMemcpyAsync = copy_any;
	gp_driver.cuStreamWriteValue32 = write_value;
	arena = malloc(RECORDS * sizeof *arena);
	domain.frozen = malloc(BLP_LOG * sizeof *domain.frozen);
	domain.zero = calloc(1, BLP_ZEROS);
	domain.image = malloc(BLP_IMAGE * sizeof *domain.image);
	CHECK(domain.image && arena && domain.frozen && domain.zero);
	for (int i = 0; i < BLP_LOG; i++)
		domain.frozen[i] = GPREEMPT_FROZEN;
	domain.arena = (CUdeviceptr)(uintptr_t)arena;
	domain.context = other.context = domain.primary_context = other.primary_context = (CUcontext)0x10;
	blp_domains[0] = &domain;
	blp_domains[1] = &other;

	unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
	blp_count_channels();
	busy(3, 0, false);
	busy(2, 2, true);
	busy(1, 0, false);
	other.busy = 3;
	CHECK(blp_may_lack_channels(&domain));
	other.context = NULL; // it has ended
	CHECK(!blp_may_lack_channels(&domain));
	writes(false);
	images();
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
	blp_count_channels();
	busy(0, 0, false);
	busy(1, 0, true);
	writes(true);
	images();
	return 0;
}
