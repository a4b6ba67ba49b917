// process_test.c - with preempt/process/process.c
//
// Times are counted in the first bucket whose bound they do not exceed.
#include "preempt/process/process.h"
#include "test/units/check.h"

enum { ONE_SECOND = GP_FIRST_BUCKET }; // the bucket whose bound is 1 s

// The bucket in which a time is counted, which must be one.
static uint32_t bucket_of(uint64_t ns)
{
	struct gp_histogram h = {0};
	uint32_t found = GP_TIME_BUCKETS;

	gp_count_time(&h, ns);
	CHECK(h.sum_ns == ns);
	for (uint32_t i = 0; i < GP_TIME_BUCKETS; i++) {
		CHECK(h.buckets[i] == 0 || (h.buckets[i] == 1 && found == GP_TIME_BUCKETS));
		if (h.buckets[i])
			found = i;
	}
	CHECK(found < GP_TIME_BUCKETS);
	return found;
}

int main(void)
{
	CHECK(bucket_of(0) == 0);
	for (uint32_t i = 0; i < GP_TIME_BUCKETS - 1; i++) {
		// 2^i / 2^GP_FIRST_BUCKET seconds, in whole nanoseconds
		uint64_t bound = (1000000000ull << i) >> GP_FIRST_BUCKET;
		CHECK(bucket_of(bound) == i);
		CHECK(bucket_of(bound + 1) == i + 1);
	}
	CHECK(bucket_of(1000000000) == ONE_SECOND && bucket_of(190000) == 5); // up to 244 us
	CHECK(bucket_of(UINT64_MAX) == GP_TIME_BUCKETS - 1);

	struct gp_histogram h = {0};
	gp_count_time(&h, 5);
	gp_count_time(&h, 7);
	CHECK(h.buckets[0] == 2 && h.sum_ns == 12);
	return 0;
}
