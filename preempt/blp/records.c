// records.c - writes records and reads them; the writes come through though all hardware channels are taken.
//
// A context's streams of all priorities share its channels (8, or CUDA_DEVICE_MAX_CONNECTIONS). A stream has one while its work waits for
// its turn there: a kernel behind one that runs, a wait for a value. Where all are taken, other streams' work waits behind that. So do
// values and small copies to the device, which go through such channels, too. Copies of at least 32 KiB or 64 rows, and all from the
// device, have channels of the copy engines (seen on an H100). So records are written in so many rows while channels may be taken.
// Otherwise values and small copies are faster, and values do not wait behind the program's copies.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <stddef.h>
#include <stdlib.h>

enum {
	BULK_BYTES = 32 << 10,
	BULK_ROWS = 64,
	ROWS_A_RECORD = BULK_ROWS / BLP_APART, // where few are frozen
	MOST_CHANNELS = 32,
};

static uint32_t channels = 8; // the driver's number

void blp_count_channels(void)
{
	const char *set = gp_environment(GP_MAX_CONNECTIONS);
	int n = set ? atoi(set) : 0;
	if (n > 0 && n <= MOST_CHANNELS)
		channels = (uint32_t)n;
}

// Which channel the driver picks is not known, and more streams may get work meanwhile.
bool blp_may_lack_channels(const struct gp_domain *d)
{
	uint32_t busy = 0;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->context && blp_domains[i]->primary_context == d->primary_context)
			busy += blp_domains[i]->busy + blp_domains[i]->host_blocked;
	return 2 * busy >= channels;
}

static bool needs_rows(const struct gp_domain *d, size_t bytes)
{
	return bytes < BULK_BYTES && blp_may_lack_channels(d);
}

struct rows { // of pinned memory, or of the device's
	const void *at;
	size_t apart;
};

static CUresult put_rows(struct rows to, struct rows from, size_t bytes, size_t rows, CUstream stream)
{
	struct gp_copy_2d copy = {
		.from = {.memory_type = CU_MEMORYTYPE_HOST, .host = from.at, .pitch = from.apart},
		.to = {.memory_type = CU_MEMORYTYPE_DEVICE, .device = (CUdeviceptr)(uintptr_t)to.at, .pitch = to.apart},
		.width_bytes = bytes,
		.height = rows,
	};
	return gp_driver.cuMemcpy2DAsync(&copy, stream);
}

// Whole records, from pinned memory: one half of each row, then the other one. No launch uses them meanwhile.
static CUresult put_in_rows(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	_Static_assert(sizeof(struct gpreempt_record) % (2 * BULK_ROWS) == 0, "a record has so many rows");
	size_t row = bytes / BULK_ROWS, half = row / 2;
	CUresult result = 0;

	for (size_t at = 0; at < row && !result; at += half)
		result = put_rows((struct rows){(const char *)(uintptr_t)to + at, row},
				  (struct rows){(const char *)from + at, row}, half, BULK_ROWS, stream);
	return result;
}

CUresult blp_zero(struct gp_domain *d, CUdeviceptr at, size_t bytes)
{
	bool inside = blp_inside;
	CUresult result = 0;

	blp_inside = true;
	for (size_t done = 0; done < bytes && !result; done += BLP_ZEROS) {
		size_t piece = bytes - done < BLP_ZEROS ? bytes - done : BLP_ZEROS;
		result = needs_rows(d, piece) ?
				 put_in_rows(at + done, d->zero, piece, d->zeros) :
				 gp_driver.cuMemcpyAsync(at + done, (CUdeviceptr)(uintptr_t)d->zero, piece, d->zeros);
	}
	blp_inside = inside;
	return result;
}

static bool accepted(struct gp_domain *d, const char *call, CUresult result)
{
	if (result)
		blp_give_up(d, call, result);
	return !result;
}

bool blp_set_flag(struct gp_domain *d, bool set)
{
	const void *record = set ? (const void *)d->frozen : d->zero;

	if (blp_may_lack_channels(d)) // the flag is the first word of a record that has nothing else
		return accepted(d, "cuMemcpy2DAsync",
				put_in_rows(d->arena, record, sizeof(struct gpreempt_record), d->stream));
	if (gp_driver.cuStreamWriteValue32 && !gp_driver.cuStreamWriteValue32(d->stream, d->arena, set, 0))
		return true;
	BLP_TRY(cuMemcpyHtoDAsync, d->arena, record, sizeof *d->frozen, d->stream);
	return true;
}

bool blp_freeze(struct gp_domain *d, uint32_t first, uint32_t count)
{
	_Static_assert(BLP_GRANULE == BLP_APART && sizeof(struct gpreempt_record) / ROWS_A_RECORD == 64,
		       "the other rows of a record meet neither count nor done");
	enum { RECORD = sizeof(struct gpreempt_record), WORD = sizeof *d->frozen };
	bool lacks = blp_may_lack_channels(d), done = true;

	for (uint32_t n, each; count && done; first += n, count -= n) {
		each = 1;
		if (lacks && count < BULK_ROWS) {
			each = ROWS_A_RECORD;
			if (count < BLP_APART) { // a graph has all of its granule
				first -= first < BLP_RECORDS ? BLP_APART - count : 0;
				count = BLP_APART;
			}
		}
		n = count < BLP_LOG / each ? count : BLP_LOG / each;
		CUdeviceptr states = d->arena + first * (CUdeviceptr)RECORD + offsetof(struct gpreempt_record, state);
		done = accepted(d, "cuMemcpy2DAsync",
				put_rows((struct rows){(const void *)(uintptr_t)states, RECORD / each},
					 (struct rows){d->frozen, WORD}, WORD, (size_t)n * each, d->stream));
	}
	return done;
}

bool blp_freeze_launches(struct gp_domain *d, uint32_t from, uint32_t to)
{
	if (to < from)
		return blp_freeze(d, from, BLP_RECORDS - from) && blp_freeze(d, BLP_APART, to - BLP_APART);
	return blp_freeze(d, from, to - from);
}

bool blp_copy_records(struct gp_domain *d, uint32_t first, uint32_t count, struct gpreempt_record *at, bool to_device)
{
	CUdeviceptr device = d->arena + first * sizeof *at;
	size_t bytes = count * sizeof *at;
	if (!to_device)
		BLP_TRY(cuMemcpyDtoHAsync, at, device, bytes, d->stream);
	else if (needs_rows(d, bytes))
		return accepted(d, "cuMemcpy2DAsync", put_in_rows(device, at, bytes, d->stream));
	else
		BLP_TRY(cuMemcpyHtoDAsync, device, at, bytes, d->stream);
	return true;
}

// d->image holds the records from d->first_record on.
static uint32_t place_in_image(const struct gp_domain *d, uint32_t record)
{
	return (record + BLP_RECORDS - d->first_record) % BLP_RECORDS;
}

struct gpreempt_record *blp_record_of(struct gp_domain *d, const struct blp_entry *e)
{
	return &d->image[place_in_image(d, e->record)];
}

bool blp_copy_image(struct gp_domain *d, bool to_device)
{
	uint32_t first = d->first_record, last = d->last_record, passed = first ? place_in_image(d, d->oldest_record) : 0;
	if (!first)
		return true;
	// Records of entries that are complete since the image was read may have been zeroed by now, and be handed out next.
	if (to_device && passed < BLP_RECORDS / 2) {
		if (passed > place_in_image(d, last))
			return true;
		first = d->oldest_record;
	}
	struct gpreempt_record *image = &d->image[place_in_image(d, first)];
	if (last >= first)
		return blp_copy_records(d, first, last - first + 1, image, to_device);
	return blp_copy_records(d, first, BLP_RECORDS - first, image, to_device) &&
	       blp_copy_records(d, BLP_APART, last - BLP_APART + 1, &d->image[place_in_image(d, BLP_APART)], to_device);
}
