// blp_log.c - the log of a domain: what was launched and is not known to be complete; and the launch path.
#define _GNU_SOURCE
#include "blp_domain.h"
#include "code.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { // cuda.h
	CU_LAUNCH_PARAM_BUFFER_POINTER = 1,
	CU_LAUNCH_PARAM_BUFFER_SIZE = 2,
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
	CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11,
	CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12,
	CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	MOST_CLUSTER_BLOCKS = 1 << 22, // of a grid, in each dimension: see ../kernels/guard/guard.cu
	ALIGNMENT = 16,
};

static size_t round_up(size_t n) { return (n + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1); }

// Streams.

struct blp_stream *blp_find_stream(struct gp_domain *d, CUstream handle, bool insert)
{
	struct blp_stream *unused = NULL;
	CUcontext context = NULL;
	unsigned flags = 0;

	for (uint32_t i = 0; i < d->streams; i++) {
		if (d->stream_of[i].handle == handle)
			return &d->stream_of[i];
		if (!d->stream_of[i].handle && !unused)
			unused = &d->stream_of[i];
	}
	// Every thread has a per-thread default stream of its own, which nobody else can launch on.
	if (!insert || handle == GP_STREAM_PER_THREAD || (!unused && d->streams == BLP_STREAMS) ||
	    (handle != GP_STREAM_LEGACY && blp_driver.cuStreamGetFlags(handle, &flags)))
		return NULL;
	// Of another context, in which an event may be recorded while this one is current, it may have launches in flight there.
	if (handle != GP_STREAM_LEGACY && blp_driver.cuStreamGetCtx &&
	    (blp_driver.cuStreamGetCtx(handle, &context) || context != d->context))
		return NULL;
	if (!unused)
		unused = &d->stream_of[d->streams++];
	CUevent drain = unused->drain, taint = unused->taint;
	// Entries of a stream that had the place are complete.
	*unused = (struct blp_stream){.handle = handle, .blocking = !(flags & CU_STREAM_NON_BLOCKING), .last = d->head,
				      .done = d->head, .first_marker = -1, .last_marker = -1, .drain = drain, .taint = taint};
	return unused;
}

// Whether work of two streams is ordered by the rules of the legacy stream.
static bool related(const struct blp_stream *s, CUstream handle, bool blocking)
{
	return s->handle == handle || (blocking && s->handle == GP_STREAM_LEGACY) || (handle == GP_STREAM_LEGACY && s->blocking);
}

bool blp_related_pending(struct gp_domain *d, struct blp_stream *of)
{
	for (uint32_t i = 0; i < d->streams; i++)
		if (blp_pending(&d->stream_of[i]) && related(&d->stream_of[i], of->handle, of->blocking))
			return true;
	return false;
}

bool blp_is_tainted(struct gp_domain *d, struct blp_stream *of)
{
	bool found = false;
	for (uint32_t i = 0; d->tainted && i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (!s->handle || !s->tainted || !related(s, of->handle, of->blocking))
			continue;
		if (blp_driver.cuEventQuery(s->taint) == BLP_NOT_READY) {
			found = true;
			continue;
		}
		s->tainted = false;
		d->tainted--;
	}
	return found;
}

void blp_taint(struct gp_domain *d, struct blp_stream *s)
{
	enum { CU_EVENT_DISABLE_TIMING = 2 }; // cuda.h
	if ((!s->taint && blp_driver.cuEventCreate(&s->taint, CU_EVENT_DISABLE_TIMING)) ||
	    blp_driver.cuEventRecord(s->taint, s->handle))
		return;
	d->tainted += !s->tainted;
	s->tainted = true;
}

// Completion.

void blp_drop_markers(struct gp_domain *d, struct blp_stream *s)
{
	while (s->first_marker >= 0) {
		int m = s->first_marker;
		s->first_marker = d->marker[m].next;
		d->marker[m].next = d->free_marker;
		d->free_marker = m;
	}
	s->last_marker = -1;
	s->unmarked = 0;
}

void blp_complete_to(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	if (upto <= s->done)
		return;
	if (upto > d->tail) {
		s->finished = blp_entry_at(d, upto - 1)->ordinal;
		s->blocks_finished = blp_entry_at(d, upto - 1)->blocks;
	}
	s->done = upto;
	if (s->done >= s->last) {
		s->finished = s->entries;
		s->blocks_finished = s->blocks;
		blp_drop_markers(d, s);
	}
}

static bool has_record(const struct blp_entry *e)
{
	return e->kind == BLP_GRAPH || (e->kind == BLP_LAUNCH && e->record);
}

static uint64_t blocks_of(const struct blp_entry *e)
{
	return (uint64_t)e->grid[0] * e->grid[1] * e->grid[2];
}

static uint32_t following(uint32_t record) { return record + 1 == BLP_RECORDS ? 1 : record + 1; }

// What a record counts.
uint32_t blp_windows(uint64_t blocks, uint32_t cluster, uint8_t shift)
{
	return (uint32_t)((blocks / cluster - 1) >> shift) + 1;
}

// Large grids have windows of 512 to 2048 blocks, about as many as run at a time, and 32 of them at least: copying, 2^18
// blocks took an H200 27 % longer without windows and 2 % with.
uint8_t blp_shift(uint64_t blocks, bool cooperative)
{
	enum { LEAST = 14, FEWEST = 5, LARGEST = 11 }; // log2: of blocks, of windows, of a window
	int size = 63 - __builtin_clzll(blocks);
	if (cooperative)
		return GPREEMPT_WHOLE;
	return size < LEAST ? 0 : size - FEWEST > LARGEST ? LARGEST : (uint8_t)(size - FEWEST);
}

void blp_advance(struct gp_domain *d)
{
	while (d->tail < d->head) {
		const struct blp_entry *e = blp_entry_at(d, d->tail);
		if (!e->complete && d->tail >= d->stream_of[e->stream].done)
			break;
		d->recorded -= has_record(e);
		if (e->kind == BLP_LAUNCH && e->record)
			d->oldest_record = following(e->record);
		d->tail++;
	}
	if (d->tail == d->head)
		d->oldest_record = d->next_record;
}

void blp_mark(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	int m = d->free_marker;
	if (m < 0 || blp_driver.cuEventRecord(d->marker[m].event, s->handle))
		return;
	d->free_marker = d->marker[m].next;
	d->marker[m].upto = upto;
	d->marker[m].next = -1;
	if (s->last_marker >= 0)
		d->marker[s->last_marker].next = m;
	else
		s->first_marker = m;
	s->last_marker = m;
	s->unmarked = 0;
}

// While the domain is stopped the end of a launch says nothing. That may begin at any time, without the lock: so the
// epoch is looked at after the question.
static void poll_markers(struct gp_domain *d, struct blp_stream *s)
{
	while (s->first_marker >= 0 && !blp_driver.cuEventQuery(d->marker[s->first_marker].event) && !(d->epoch % 2)) {
		int m = s->first_marker;
		s->first_marker = d->marker[m].next;
		if (s->first_marker < 0)
			s->last_marker = -1;
		d->marker[m].next = d->free_marker;
		d->free_marker = m;
		blp_complete_to(d, s, d->marker[m].upto);
	}
}

uint64_t blp_patience(void)
{
	// A window is not respected longer than max_hold, and what drains then is kernels. Who waits longer may be
	// what a kernel waits for.
	return gp_now_ns() + 2 * gp_settings.max_hold_ns + 200000000;
}

bool blp_wait_resumed(struct gp_domain *d, uint64_t deadline_ns)
{
	struct timespec t = {(time_t)(deadline_ns / 1000000000), (long)(deadline_ns % 1000000000)};
	while (d->epoch % 2 && d->context) {
		if (!deadline_ns)
			pthread_cond_wait(&d->resumed, &d->lock);
		else if (pthread_cond_timedwait(&d->resumed, &d->lock, &t) && gp_now_ns() >= deadline_ns)
			return !(d->epoch % 2);
	}
	return true;
}

// The ring of bytes.

static uint64_t bytes_tail(struct gp_domain *d)
{
	return d->tail < d->head ? blp_entry_at(d, d->tail)->bytes_begin : d->bytes_head;
}

static uint64_t bytes_at(struct gp_domain *d, uint32_t bytes)
{
	uint64_t at = d->bytes_head, in_ring = at % BLP_BYTES;
	return in_ring + bytes > BLP_BYTES ? at + BLP_BYTES - in_ring : at;
}

// What is in flight takes time to drain.
static bool bounded(const struct blp_stream *s, uint64_t entries)
{
	return entries < BLP_IN_FLIGHT && (entries < 2 || s->blocks - s->blocks_finished < BLP_BLOCKS_IN_FLIGHT);
}

static bool has_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes)
{
	uint64_t entries = s->entries - s->finished;
	uint32_t records = (d->next_record + (BLP_RECORDS - 1) - d->oldest_record) % (BLP_RECORDS - 1);
	return d->head - d->tail < BLP_LOG && records < BLP_LOG && (!blp_can_stop(d) || bounded(s, entries)) &&
	       bytes_at(d, bytes) + bytes - bytes_tail(d) <= BLP_BYTES;
}

// May give up the lock for a while. A thread waits only for its own stream: what another one has in flight may be
// waiting for what this one is about to launch.
bool blp_make_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	for (;;) {
		if (s->handle != handle || d->context != context)
			return false;
		if (has_room(d, s, bytes))
			return true;
		if (d->epoch % 2 || d->given_up)
			return false;
		poll_markers(d, s);
		struct blp_stream *oldest = d->tail < d->head ? &d->stream_of[blp_entry_at(d, d->tail)->stream] : s;
		if (oldest != s) {
			if (oldest->first_marker < 0 && blp_pending(oldest))
				blp_mark(d, oldest, oldest->last);
			poll_markers(d, oldest);
		}
		blp_advance(d);
		if (has_room(d, s, bytes))
			return true;
		if (!blp_pending(s))
			return false;
		if (s->first_marker < 0)
			blp_mark(d, s, s->last);
		if (s->first_marker < 0)
			return false;
		CUevent event = d->marker[s->first_marker].event;
		pthread_mutex_unlock(&d->lock);
		CUresult result = blp_driver.cuEventSynchronize(event);
		pthread_mutex_lock(&d->lock);
		if (result)
			return false;
	}
}

// Records are zero when they are used: a region was zeroed long before, when the one after the next was begun and
// nothing of it was in flight any more.
static uint32_t take_record(struct gp_domain *d)
{
	uint32_t record = d->next_record;
	if (record % BLP_REGION == 0 || record == 1) {
		uint32_t region = record / BLP_REGION, retired = (region + BLP_REGIONS - 2) % BLP_REGIONS;
		uint64_t skip = retired == 0; // the flag
		CUdeviceptr at = d->arena + (retired * (uint64_t)BLP_REGION + skip) * sizeof(struct gpreempt_record);
		const char *call = "cuEventSynchronize";
		CUresult result = d->zeroing[region] ? blp_driver.cuEventSynchronize(d->zeroed[region]) : 0;
		if (!result) {
			call = "cuMemsetD8Async";
			result = blp_driver.cuMemsetD8Async(at, 0, (BLP_REGION - skip) * sizeof(struct gpreempt_record), d->stream);
		}
		if (!result) {
			call = "cuEventRecord";
			result = blp_driver.cuEventRecord(d->zeroed[retired], d->stream);
		}
		if (result) { // else a launch would find what another left, and skip blocks
			blp_give_up(d, call, result);
			return 0;
		}
		d->zeroing[retired] = true;
	}
	d->next_record = following(record);
	return record;
}

struct blp_entry *blp_append(struct gp_domain *d, struct blp_stream *s, enum blp_kind kind, uint32_t bytes, char **room)
{
	struct blp_entry *e = blp_entry_at(d, d->head);
	uint64_t at = bytes_at(d, bytes);
	e->kind = kind;
	e->driven = e->complete = e->counted = false;
	e->stream = (uint16_t)(s - d->stream_of);
	e->ordinal = ++s->entries;
	e->blocks = s->blocks;
	e->bytes_begin = d->bytes_head;
	if (bytes) {
		*room = d->bytes + at % BLP_BYTES;
		d->bytes_head = at + bytes;
	}
	// While nobody could want a stop, launches go without a record, which costs their blocks next to nothing. Not behind
	// one with a record: that may be cut when somebody comes.
	if (kind == BLP_LAUNCH)
		e->record = d->recorded || blp_can_stop(d) ? take_record(d) : 0;
	d->recorded += has_record(e);
	s->last = ++d->head;
	return e;
}

// The last entry, of that stream.
void blp_unappend(struct gp_domain *d, struct blp_stream *s)
{
	struct blp_entry *e = blp_entry_at(d, --d->head);
	d->bytes_head = e->bytes_begin;
	d->recorded -= has_record(e);
	if (e->kind == BLP_LAUNCH) // its record may have been frozen by now, and is not used again
		s->blocks -= blocks_of(e);
	s->entries--;
	s->last = s->done; // where nothing else is pending
	for (uint64_t at = d->head; at > d->tail && at > s->done; at--)
		if (&d->stream_of[blp_entry_at(d, at - 1)->stream] == s) {
			s->last = at;
			break;
		}
}

void blp_appended(struct gp_domain *d, struct blp_stream *s)
{
	const struct blp_entry *e = blp_entry_at(d, d->head - 1);
	bool large = e->kind == BLP_LAUNCH && e->record && blocks_of(e) >= BLP_BLOCKS_IN_FLIGHT / 4;
	if (++s->unmarked < BLP_MARKER_EVERY && !large)
		return;
	poll_markers(d, s);
	blp_advance(d);
	blp_mark(d, s, s->last);
}

// Launches.

static CUresult call_driver(CUfunction f, const uint32_t *grid, const uint32_t *block, uint32_t shared, CUstream stream,
			    const struct gp_launch_attribute *attributes, uint32_t attribute_count, void **parameters, void **extra)
{
	if (!attribute_count)
		return gp_driver.cuLaunchKernel(f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, parameters,
						extra);
	struct { // CUlaunchConfig, cuda.h
		uint32_t grid[3], block[3], shared_bytes;
		CUstream stream;
		const struct gp_launch_attribute *attributes;
		uint32_t attribute_count;
	} config = {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, stream, attributes, attribute_count};
	_Static_assert(sizeof config == 56, "CUlaunchConfig");
	return blp_driver.cuLaunchKernelEx(&config, f, parameters, extra);
}

CUresult blp_drive(struct gp_domain *d, struct blp_entry *e)
{
	size_t bytes = e->argument_bytes;
	CUdeviceptr record = e->record ? (d->arena + e->record * sizeof(struct gpreempt_record)) | e->shift : 0;
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, e->arguments, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, NULL};

	memcpy(e->arguments + bytes - sizeof record, &record, sizeof record);
	blp_inside = true;
	CUresult result = call_driver(e->function, e->grid, e->block, e->shared_bytes, d->stream_of[e->stream].handle, e->attributes,
				      e->attribute_count, NULL, extra);
	blp_inside = false;
	e->driven = !result;
	return result;
}

struct buffer { const char *bytes; size_t size; };

static struct buffer given_buffer(void **extra)
{
	struct buffer b = {NULL, 0};
	for (; extra && extra[0]; extra += 2) {
		if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER)
			b.bytes = extra[1];
		else if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE)
			b.size = *(const size_t *)extra[1];
		else
			break;
	}
	return b;
}

// False: the caller gave no arguments where there are some, of which the driver is to complain.
static bool has_arguments(const struct gp_code *code, void **parameters, void **extra)
{
	return parameters || !code->parameters || given_buffer(extra).bytes;
}

static void pack(const struct gp_code *code, void **parameters, void **extra, char *to)
{
	memset(to, 0, code->bytes);
	if (parameters) {
		for (uint16_t i = 0; i < code->parameters; i++)
			memcpy(to + code->parameter[i].offset, parameters[i], code->parameter[i].size);
		return;
	}
	struct buffer b = given_buffer(extra);
	if (b.bytes)
		memcpy(to, b.bytes, b.size < code->hidden ? b.size : code->hidden);
}

// With the hidden parameter 0: every block runs.
static bool pass(const struct gp_code *code, const struct gp_launch *l, CUresult *result)
{
	if (!has_arguments(code, l->parameters, l->extra))
		return false;
	CUdeviceptr none = 0;
	bool by_pointers = l->parameters || !l->extra;
	void *parameters[by_pointers ? code->parameters + 1 : 1];
	char bytes[by_pointers ? 1 : code->bytes];
	size_t size = code->bytes;
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &size, NULL};

	if (by_pointers) {
		for (uint16_t i = 0; i < code->parameters; i++)
			parameters[i] = l->parameters[i];
		parameters[code->parameters] = &none;
	} else {
		pack(code, NULL, l->extra, bytes);
	}
	if (l->cooperative && !l->attribute_count)
		*result = blp_driver.cuLaunchCooperativeKernel(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
							       l->block[2], l->shared_bytes, l->stream, parameters);
	else
		*result = call_driver(l->function, l->grid, l->block, l->shared_bytes, l->stream, l->attributes, l->attribute_count,
				      by_pointers ? parameters : NULL, by_pointers ? NULL : extra);
	return true;
}

// Launches that the guard can't number, or that do more than run a kernel. Such an event would have to be
// recorded again.
static bool can_be_stopped(const struct gp_launch *l)
{
	bool large = false;
	if ((l->cooperative && !blp_driver.cuLaunchKernelEx) || (double)l->grid[0] * l->grid[1] * l->grid[2] >= GPREEMPT_MOST)
		return false;
	for (int i = 0; i < 3; i++)
		large |= l->grid[i] >= MOST_CLUSTER_BLOCKS;
	for (uint32_t i = 0; i < l->attribute_count; i++)
		switch (l->attributes[i].id) {
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			if (large)
				return false;
			break;
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
		case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			return false;
		}
	return true;
}

static void fill_in(struct blp_entry *e, const struct gp_launch *l, const struct gp_code *code, char *room)
{
	bool cooperative = l->cooperative;
	e->function = l->function;
	memcpy(e->grid, l->grid, sizeof e->grid);
	memcpy(e->block, l->block, sizeof e->block);
	e->shared_bytes = l->shared_bytes;
	e->arguments = room;
	e->argument_bytes = code->bytes;
	e->attributes = (struct gp_launch_attribute *)(room + round_up(code->bytes));
	e->attribute_count = 0;
	e->cluster = 1;
	pack(code, l->parameters, l->extra, room);
	// A kernel that may begin before the one ahead of it ends could run where that one was cut. Without a record it does not
	// follow one that has one.
	for (uint32_t i = 0; i < l->attribute_count; i++) {
		const struct gp_launch_attribute *a = &l->attributes[i];
		if ((a->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION || !e->record) && a->id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			e->attributes[e->attribute_count++] = *a;
		if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			cooperative = a->value.cooperative;
		else if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			e->cluster = a->value.cluster[0] * a->value.cluster[1] * a->value.cluster[2];
	}
	if (cooperative) {
		struct gp_launch_attribute *a = &e->attributes[e->attribute_count++];
		*a = (struct gp_launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
		a->value.cooperative = 1;
	}
	uint64_t blocks = blocks_of(e);
	if (!e->cluster || !blocks || blocks % e->cluster) // of which the driver is to complain
		e->cluster = 1;
	e->shift = blp_shift(blocks ? blocks : 1, cooperative);
}

// False: to be launched as a barrier.
static bool log_launch(struct gp_domain *d, CUcontext context, const struct gp_launch *l, const struct gp_code *code,
		       CUresult *result)
{
	uint32_t bytes = (uint32_t)(round_up(code->bytes) + (l->attribute_count + l->cooperative) * sizeof *l->attributes);
	uint64_t deadline = 0;
	bool patient = true;
	char *room = NULL;

	bytes = (uint32_t)round_up(bytes);
	pthread_mutex_lock(&d->lock);
	for (;;) {
		struct blp_stream *s;
		if (d->context != context || d->given_up || gp_capturing() || !(s = blp_find_stream(d, l->stream, true)))
			break;
		if (d->epoch % 2 && (patient || !has_room(d, s, bytes))) {
			if (!deadline)
				deadline = blp_patience();
			patient = blp_wait_resumed(d, patient ? deadline : 0);
			continue;
		}
		if (blp_is_tainted(d, s))
			break;
		if (!blp_make_room(d, s, bytes)) {
			if (d->epoch % 2)
				continue;
			break;
		}
		if (d->epoch % 2 && patient)
			continue;
		struct blp_entry *e = blp_append(d, s, BLP_LAUNCH, bytes, &room);
		fill_in(e, l, code, room);
		e->blocks = s->blocks += blocks_of(e);
		*result = 0;
		if (!(d->epoch % 2)) { // else only logged: it is launched at the resumption
			*result = blp_drive(d, e);
			if (*result)
				blp_unappend(d, s);
			else
				blp_appended(d, s);
		}
		pthread_mutex_unlock(&d->lock);
		if (!*result)
			gp_count(&d->gpu->stops.launches, 1);
		return true;
	}
	pthread_mutex_unlock(&d->lock);
	return false;
}

bool gp_blp_launch(struct gp_submission *submission, const struct gp_launch *l, CUresult *result)
{
	const struct gp_code *code = gp_code_of(l->function);
	CUcontext context = NULL;

	(void)submission;
	if (!code && !blp_domains[0])
		return false;
	if (blp_inside || l->captured)
		return code && pass(code, l, result);
	if (blp_error) {
		*result = blp_error;
		return true;
	}
	gp_driver.cuCtxGetCurrent(&context);
	struct gp_domain *d = context ? blp_domain_of(context, l->stream) : NULL;
	if (code && d && can_be_stopped(l) && has_arguments(code, l->parameters, l->extra)) {
		blp_flush_others(d, context, l->stream);
		if (log_launch(d, context, l, code, result))
			return true;
	}
	gp_blp_flush(l->stream);
	if (d)
		gp_count(&d->gpu->stops.uncovered, 1);
	return code && pass(code, l, result);
}

static bool complete(CUfunction function, struct gp_arguments *a)
{
	static const CUdeviceptr none;
	const struct gp_code *code = gp_code_of(function);
	if (!code || !has_arguments(code, a->parameters, a->extra))
		return false;
	if (a->parameters || !a->extra) {
		void **parameters = malloc((code->parameters + 1u) * sizeof *parameters);
		if (!parameters)
			return false;
		for (uint16_t i = 0; i < code->parameters; i++)
			parameters[i] = a->parameters[i];
		parameters[code->parameters] = (void *)&none;
		*a = (struct gp_arguments){parameters, NULL, parameters};
		return true;
	}
	struct {
		void *extra[5];
		size_t size;
		char bytes[];
	} *memory = malloc(sizeof *memory + code->bytes);
	if (!memory)
		return false;
	pack(code, NULL, a->extra, memory->bytes);
	memory->size = code->bytes;
	memory->extra[0] = (void *)CU_LAUNCH_PARAM_BUFFER_POINTER;
	memory->extra[1] = memory->bytes;
	memory->extra[2] = (void *)CU_LAUNCH_PARAM_BUFFER_SIZE;
	memory->extra[3] = &memory->size;
	memory->extra[4] = NULL;
	*a = (struct gp_arguments){NULL, memory->extra, memory};
	return true;
}

// Barriers.

// Waits until what the stream has in the log now is complete. Gives up the lock meanwhile; false after an error.
static bool flush_one(struct gp_domain *d, struct blp_stream *s)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	uint64_t target = s->last;
	bool counted = false, pushed;

	while (s->handle == handle && s->done < target && !d->given_up && d->context == context) {
		uint32_t epoch = d->epoch; // once: a stop begins without the lock
		if (epoch % 2) {
			blp_wait_resumed(d, 0);
			continue;
		}
		if (!counted) {
			counted = true;
			gp_count(&d->gpu->stops.barriers, 1);
		}
		pthread_mutex_unlock(&d->lock);
		CUresult result = BLP_NOT_READY;
		if (blp_enter(context, &pushed)) {
			result = blp_driver.cuStreamSynchronize(handle);
			blp_leave(pushed);
		}
		pthread_mutex_lock(&d->lock);
		if (result)
			return false;
		if (d->epoch == epoch && s->handle == handle)
			blp_complete_to(d, s, target);
	}
	return true;
}

// Without a record nothing is cut: who only wants to be behind it need not wait.
static void flush(CUcontext context, CUstream handle, bool all, uint32_t except, const struct gp_domain *but)
{
	// A thread that captures elsewhere may not wait for a stream in the modes that forbid what is unsafe.
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool blocking = true, known = handle == GP_STREAM_LEGACY || handle == GP_STREAM_PER_THREAD, relaxed = false;
	unsigned flags;

	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!d->context || (context && d->context != context) || d->head == d->tail || d->reasons & except || d == but)
			continue;
		if (!known && !all) {
			known = true;
			blocking = !blp_driver.cuStreamGetFlags(handle, &flags) && !(flags & CU_STREAM_NON_BLOCKING);
		}
		pthread_mutex_lock(&d->lock);
		bool cut = d->recorded || d->epoch % 2; // or may be, or is not launched yet
		for (uint32_t s = 0; (cut || except) && s < d->streams; s++) {
			if (!blp_pending(&d->stream_of[s]) || !(all || related(&d->stream_of[s], handle, blocking)))
				continue;
			if (!relaxed && gp_capturing()) {
				gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
				relaxed = true;
			}
			if (!flush_one(d, &d->stream_of[s]))
				break;
		}
		blp_advance(d);
		pthread_mutex_unlock(&d->lock);
	}
	if (relaxed)
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
}

void gp_blp_flush(CUstream stream)
{
	CUcontext context = NULL;
	if (blp_inside || !blp_domains[0])
		return;
	// Default streams are those of the current context; of others, any context may ask.
	if ((stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD) &&
	    (gp_driver.cuCtxGetCurrent(&context) || !context))
		return;
	if (!context) {
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && !context; i++) {
			struct gp_domain *d = blp_domains[i];
			if (!d->context || d->head == d->tail)
				continue;
			pthread_mutex_lock(&d->lock);
			if (blp_find_stream(d, stream, false))
				context = d->context;
			pthread_mutex_unlock(&d->lock);
		}
		if (!context && (gp_driver.cuCtxGetCurrent(&context) || !context))
			return;
	}
	flush(context, stream, false, 0, NULL);
}

void gp_blp_flush_all(CUcontext context)
{
	if (!blp_inside)
		flush(context, NULL, true, 0, NULL);
}

// Of streams that the rules of the legacy stream order with this one, those of other domains, which stop and go on at
// other times.
void blp_flush_others(struct gp_domain *d, CUcontext context, CUstream stream)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		unsigned flags;
		if (blp_domains[i] == d || blp_domains[i]->context != context || blp_domains[i]->head == blp_domains[i]->tail)
			continue;
		// Without its lock, which is held while it goes on, for most streams.
		if (stream == GP_STREAM_LEGACY || (!blp_driver.cuStreamGetFlags(stream, &flags) && !(flags & CU_STREAM_NON_BLOCKING)))
			flush(context, stream, false, 0, d);
		return;
	}
}

static void before_barrier(struct gp_submission *s)
{
	gp_blp_flush(s->stream);
	struct gp_domain *d = s->work == GP_GRAPH ? gp_blp_domain(s->stream) : NULL;
	if (d)
		gp_count(&d->gpu->stops.uncovered, 1);
}

// After an operation that may wait for the CPU. What follows it on the stream can't be stopped, since stopping
// waits for what is ahead, and the CPU may be waiting for the stop to end.
void gp_blp_waits_for_cpu(struct gp_submission *submission)
{
	CUcontext context = NULL;
	if (gp_driver.cuCtxGetCurrent(&context) || !context)
		return;
	struct gp_domain *d = blp_domain_of(context, submission->stream);
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	struct blp_stream *s = d->context == context ? blp_find_stream(d, submission->stream, true) : NULL;
	if (s)
		blp_taint(d, s);
	pthread_mutex_unlock(&d->lock);
}

// So that while anything is captured the watcher has nothing to stop. A stream that the program stopped itself is
// not what it captures.
void gp_blp_capture_beginning(void)
{
	if (!blp_inside)
		flush(NULL, NULL, true, GP_BLP_ASKED | GP_BLP_HELD, NULL);
}

void gp_blp_hooks(struct gp_hooks *hooks)
{
	if (!blp_driver.cuMemAlloc)
		return;
	hooks->launch = gp_blp_launch;
	hooks->launch_graph = gp_blp_launch_graph;
	hooks->graph_changed = gp_blp_graph_changed;
	hooks->before_barrier = before_barrier;
	hooks->before_record = gp_blp_before_record;
	hooks->after_record = gp_blp_after_record;
	hooks->before_stream_wait = gp_blp_before_stream_wait;
	hooks->after_stream_wait = gp_blp_after_stream_wait;
	hooks->answer = gp_blp_answer;
	hooks->event_destroying = gp_blp_event_destroying;
	hooks->event_shared = gp_blp_event_shared;
	hooks->complete = complete;
}
