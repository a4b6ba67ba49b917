// launch.c - the launch path: appends launches to the log and hands them to the driver.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/process/facts.h"

#include <stdlib.h>
#include <string.h>

enum {
	MOST_CLUSTER_BLOCKS = 1 << 22, // of a grid, in each dimension: see ../kernels/guard/guard.cu
	ALIGNMENT = 16,
};

static size_t round_up(size_t n) { return (n + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1); }

struct buffer {
	const char *bytes;
	size_t size;
	bool odd; // it is described in a way that is not known here
};

static struct buffer given_buffer(void **extra)
{
	struct buffer b = {NULL, 0, false};
	for (; extra && extra[0] && !b.odd; extra += 2) {
		if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER)
			b.bytes = extra[1];
		else if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1])
			b.size = *(const size_t *)extra[1];
		else
			b.odd = true;
	}
	return b;
}

static size_t end_of_parameters(const struct gp_code *code)
{
	uint16_t n = code->parameters;
	return n ? code->parameter[n - 1].offset + code->parameter[n - 1].size : 0;
}

// False: the kernel has parameters, and the caller gave none for some. The driver gets what the caller gave, and is to refuse it.
static bool has_arguments(const struct gp_code *code, void **parameters, void **extra)
{
	if (!parameters) {
		struct buffer b = given_buffer(extra);
		return !b.odd && (b.bytes ? b.size >= end_of_parameters(code) : !code->parameters);
	}
	for (uint16_t i = 0; i < code->parameters; i++)
		if (!parameters[i])
			return false;
	return true;
}

static bool are_too_many(const struct gp_code *code, void **extra) { return given_buffer(extra).size > code->hidden; }

// Whether the driver takes arguments in this form: it wants either of the two, and no more than the kernel has.
static bool are_usual(const struct gp_code *code, void **parameters, void **extra)
{
	return parameters ? !extra : !extra || !are_too_many(code, extra);
}

void gp_blp_pack(const struct gp_code *code, void **parameters, void **extra, char *to)
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

// Whether a launch is to lose the priority that it names: under MPS the process's level says it, as for streams. More attributes than
// there are ids are for the driver to refuse.
static bool is_levelled(const struct gp_operation *o, const struct gp_launch *l)
{
	bool named = false;
	for (uint32_t i = 0; i < l->attribute_count && l->attribute_count <= GP_LAUNCH_ATTRIBUTES; i++)
		named |= l->attributes[i].id == CU_LAUNCH_ATTRIBUTE_PRIORITY;
	if (!named || !gp_settings.mps)
		return false;
	const struct gp_context *c = o->context ? o->context : gp_current_context(); // of a launch that is captured
	return c && c->gpu->mps;
}

// Launches with the hidden parameter 0: every block runs.
static bool pass(struct gp_operation *o, const struct gp_code *code, const struct gp_launch *l)
{
	if (!has_arguments(code, l->parameters, l->extra))
		return false;
	CUdeviceptr none = 0;
	bool by_pointers = l->parameters || !l->extra;
	const struct gp_launch_attribute *attributes = l->attributes;
	uint32_t attribute_count = l->attribute_count;
	struct gp_launch_attribute kept[GP_LAUNCH_ATTRIBUTES];
	if (is_levelled(o, l)) {
		attributes = kept;
		attribute_count = 0;
		for (uint32_t i = 0; i < l->attribute_count; i++)
			if (l->attributes[i].id != CU_LAUNCH_ATTRIBUTE_PRIORITY)
				kept[attribute_count++] = l->attributes[i];
	}
	void *parameters[by_pointers ? code->parameters + 1 : 1];
	char bytes[by_pointers ? 1 : code->bytes + 1];
	size_t size = code->bytes + (!by_pointers && are_too_many(code, l->extra)); // for the driver to refuse
	void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, (void *)CU_LAUNCH_PARAM_BUFFER_SIZE, &size, NULL};

	if (by_pointers) {
		blp_with_hidden(parameters, l->parameters, code->parameters, &none);
	} else {
		gp_blp_pack(code, NULL, l->extra, bytes);
	}
	if (l->cooperative && !attribute_count)
		o->result = gp_driver.cuLaunchCooperativeKernel(l->function, l->grid[0], l->grid[1], l->grid[2],
								l->block[0], l->block[1], l->block[2], l->shared_bytes,
								o->stream, parameters);
	else
		o->result = blp_call_driver(l->function, l->grid, l->block, l->shared_bytes, o->stream, attributes,
					    attribute_count, by_pointers ? parameters : NULL,
					    by_pointers ? l->extra : extra);
	o->taken = !o->result;
	return true;
}

bool blp_can_number(CUfunction f, const uint32_t *grid, bool clusters)
{
	if (!grid[0] || !grid[1] || !grid[2] || (double)grid[0] * grid[1] * grid[2] >= GPREEMPT_MOST)
		return false;
	bool large = grid[0] >= MOST_CLUSTER_BLOCKS || grid[1] >= MOST_CLUSTER_BLOCKS || grid[2] >= MOST_CLUSTER_BLOCKS;
	return !large || !(clusters || gp_cluster_of(f) != 1);
}

// False for launches whose blocks the guard cannot number, and for those that do more than run a kernel, such as record an
// event: that would have to be repeated.
static bool can_be_stopped(const struct gp_launch *l)
{
	bool clusters = false;
	if (!gp_threads_of(l->block)) // the driver refuses it before it looks at the arguments
		return false;
	if ((l->cooperative && !gp_driver.cuLaunchKernelEx) || l->attribute_count > GP_LAUNCH_ATTRIBUTES)
		return false;
	for (uint32_t i = 0; i < l->attribute_count; i++)
		switch (l->attributes[i].id) {
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: clusters = true; break;
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
		case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: return false;
		}
	return blp_can_number(l->function, l->grid, clusters);
}

static bool can_be_logged(const struct gp_launch *l, const struct gp_code *code)
{
	return code && can_be_stopped(l) && has_arguments(code, l->parameters, l->extra) &&
	       are_usual(code, l->parameters, l->extra);
}

bool blp_logs_launch(const struct gp_launch *l) { return can_be_logged(l, gp_code_of(l->function)); }

// How many SMs the current context has. Under MPS a context may be made with fewer than the GPU has.
static uint32_t sms_of_context(const struct gp_domain *d)
{
	struct gp_affinity of_context = {.sms = 0};
	uint32_t all = (uint32_t)d->gpu->sms;
	bool known = gp_driver.cuCtxGetExecAffinity && !gp_driver.cuCtxGetExecAffinity(&of_context, GP_AFFINITY_SMS);
	return known && of_context.sms && of_context.sms < all ? of_context.sms : all;
}

// Whether all blocks of a cooperative launch are sure to have room at once. A green context has fewer SMs, and clusters leave some unused.
static bool are_blocks_resident(const struct gp_domain *d, const struct gp_launch *l, bool clusters)
{
	CUfunction function = l->function, of_kernel;
	int on_sm = 0;
	if (clusters || d->context != d->primary_context)
		return false;
	if (gp_driver.cuKernelGetFunction && !gp_driver.cuKernelGetFunction(&of_kernel, function))
		function = of_kernel;
	return gp_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor &&
	       !gp_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&on_sm, function, (int)gp_threads_of(l->block),
								      l->shared_bytes) &&
	       on_sm > 0 && (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] <= (uint64_t)on_sm * sms_of_context(d);
}

// Whether the driver takes a launch for certain. During a stop the call succeeds before the driver has the launch.
static bool is_certain(const struct gp_domain *d, const struct gp_launch *l, uint32_t cluster)
{
	enum { LARGEST = 8 }; // of the clusters that every kernel may have
	bool cooperative = l->cooperative, clusters = cluster != 1;
	for (uint32_t i = 0; i < l->attribute_count; i++) {
		const struct gp_launch_attribute *a = &l->attributes[i];
		uint64_t blocks = 1;
		switch (a->id) {
		case CU_LAUNCH_ATTRIBUTE_IGNORE:
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
		case CU_LAUNCH_ATTRIBUTE_PRIORITY: break;
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: cooperative |= a->value.cooperative != 0; break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			for (int side = 0; side < 3; side++) {
				uint32_t length = a->value.cluster[side];
				if (!length || length > LARGEST || l->grid[side] % length)
					return false;
				blocks *= length;
			}
			if (blocks > LARGEST || cluster != 1)
				return false;
			clusters |= blocks != 1;
			break;
		default: return false; // also what drivers to come know
		}
	}
	return !cooperative || are_blocks_resident(d, l, clusters);
}

static void fill_in(struct gp_domain *d, struct blp_entry *e, const struct gp_launch *l, const struct gp_code *code,
		    const struct blp_shape *shape, char *room)
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
	e->cluster = shape->cluster;
	e->on_sm = shape->on_sm;
	gp_blp_pack(code, l->parameters, l->extra, room);
	// Programmatic serialization is left out: a kernel that begins before the one ahead ends could run though that was cut.
	for (uint32_t i = 0; i < l->attribute_count; i++) {
		const struct gp_launch_attribute *a = &l->attributes[i];
		if (a->id == CU_LAUNCH_ATTRIBUTE_PRIORITY && gp_settings.mps && d->gpu->mps)
			continue; // as streams: the process's level says it
		if (a->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
		    a->id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
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
	uint64_t blocks = blp_blocks(e);
	if (!e->cluster || !blocks || blocks % e->cluster) // the driver is to refuse the launch
		e->cluster = 1;
	e->shift = shape->whole || cooperative ? GPREEMPT_WHOLE : blp_shift(e, (uint32_t)d->gpu->sms);
}

// False: the launch is to be a barrier.
static bool log_launch(struct gp_operation *o, struct gp_domain *d, const struct gp_launch *l, const struct gp_code *code)
{
	uint32_t bytes = (uint32_t)(round_up(code->bytes) + (l->attribute_count + l->cooperative) * sizeof *l->attributes);
	char *room = NULL;
	struct blp_shape shape = blp_shape_of(d, l->function, code, l->grid, l->block, l->shared_bytes);
	bool now;

	if (!shape.sound) // as above: its arguments may be anything
		return false;
	bytes = (uint32_t)round_up(bytes);
	pthread_mutex_lock(&d->lock);
	for (;;) {
		struct blp_stream *s;
		blp_give_way(d);
		if (d->context != o->handle || d->given_up || !(s = blp_find_stream(d, o->stream, true)) || !blp_may_log(s))
			break;
		if (blp_is_closed(d) && !blp_has_room(d, s, bytes)) {
			blp_note_full();
			blp_begin_late(o->handle);
			blp_wait_step(d, 0);
			continue;
		}
		if (blp_is_host_blocked(d, s)) {
			if (s->queue == BLP_DEEP)
				blp_begin_late(o->handle);
			if (blp_wait_shallow(d, s))
				continue;
			break;
		}
		if (!blp_has_room(d, s, bytes)) {
			blp_begin_late(o->handle);
			if (!blp_make_room(d, s, bytes) && !blp_is_closed(d))
				break;
			continue; // the lock was given up: another operation may be on its way by now
		}
		now = !blp_is_stopped(d); // during a stop it is only logged, and the program goes on
		if (!now && !is_certain(d, l, shape.cluster))
			break;
		struct blp_entry *e = blp_append(d, s, BLP_LAUNCH, now, bytes, &room);
		if (!e)
			break;
		fill_in(d, e, l, code, &shape, room);
		e->threads = s->threads += blp_threads(e);
		// Given up: there is no record for it, and what is only logged would be lost.
		if ((blp_separated() && blp_is_crossed(o, d)) || !blp_leave_own(s) || (!now && d->given_up)) {
			blp_unappend(d, s);
			break;
		}
		o->result = 0;
		if (now) {
			o->result = blp_drive_given(d, e, l->parameters, code->parameters);
			o->taken = !o->result;
			if (o->result)
				blp_unappend(d, s);
			else
				blp_appended(d, s);
		}
		pthread_mutex_unlock(&d->lock);
		if (!o->result)
			gp_count(&d->gpu->stops.launches, 1);
		return true;
	}
	pthread_mutex_unlock(&d->lock);
	return false;
}

// A launch needs no record and no log while no thread or peer could ask for a stop, nor work in flight be cut. Its blocks then cost next to
// nothing more.
static bool must_be_logged(struct gp_domain *d)
{
	return d->recorded || d->host_blocked || blp_is_closed(d) || blp_can_stop(d);
}

// Launches past the log. False: it must be logged by now, or its stream has another domain. From the count on, no thread begins to log
// (blp_append) before the driver has the launch.
static bool pass_log(struct gp_operation *o, struct gp_domain *d, const struct gp_code *code, const struct gp_launch *l)
{
	d->passing++;
	bool passes = !must_be_logged(d) && (!blp_separated() || blp_is_counted(o, d));
	if (passes) {
		if (!d->passed)
			d->passed = true;
		if (o->stream == GP_STREAM_PER_THREAD)
			blp_pass_own(d);
		else if (o->stream == GP_STREAM_LEGACY && d->head != d->tail)
			blp_come_behind(o); // later, a marker on another stream would come behind the launch
		gp_count(&d->gpu->stops.launches, 1);
		pass(o, code, l);
	}
	d->passing--;
	return passes;
}

// The driver loads a kernel's code with its first launch, and waits with its lock for that: not with the domain's lock held. False: it
// refused, and is to tell the program.
static bool load(const struct gp_operation *o, CUfunction function)
{
	if (!blp_loads_lazily || !o->context)
		return true;
	uint64_t context = 1ull << (o->context - gp_context);
	return gp_code_is_loaded(function, context) || gp_code_load(function, context);
}

bool blp_launch(struct gp_operation *o, const struct gp_launch *l)
{
	const struct gp_code *code = gp_code_of(l->function);

	if (!code && !blp_domains[0])
		return false;
	if (blp_inside || o->captured)
		return code && gp_threads_of(l->block) && pass(o, code, l);
	if (blp_error) {
		o->result = blp_error;
		return true;
	}
	if (blp_late && (o->result = __atomic_exchange_n((CUresult *)&blp_late, 0, __ATOMIC_ACQ_REL)))
		return true;
	struct gp_domain *d = o->handle ? blp_domain_for(o) : NULL;
	if (d && can_be_logged(l, code)) {
		bool log = must_be_logged(d), separated = blp_separated(), others = false;
		if (__builtin_expect(separated, 0)) {
			blp_begin_crossing(o, d);
			others = blp_flush_others(d, o->handle, o->stream);
		}
		bool launched = !others && ((!log && pass_log(o, d, code, l)) ||
					    (load(o, l->function) && log_launch(o, d, l, code)));
		if (__builtin_expect(separated, 0))
			blp_end_crossing(o, d);
		if (launched)
			return true;
		o->cpu |= others;
		blp_wait_as_at_gate(o, d);
	}
	if (d && must_be_logged(d))
		load(o, l->function);
	blp_pass(o);
	if (d)
		gp_count(&d->gpu->stops.uncovered, 1);
	return code && gp_threads_of(l->block) && pass(o, code, l);
}

bool gp_blp_has_work(void)
{
	if (blp_always_full)
		return true;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->head != blp_domains[i]->tail)
			return true;
	return false;
}

bool gp_blp_is_full(CUcontext context, CUstream stream)
{
	enum { USUAL_BYTES = 1024 }; // of arguments
	struct gp_domain *d = blp_domain_of(context, stream);
	if (!d || d->given_up)
		return false;
	if (blp_always_full)
		return true;
	pthread_mutex_lock(&d->lock);
	struct blp_stream *s = d->context == context ? blp_find_stream(d, stream, false) : NULL;
	bool full = s && !s->host_blocked && !s->uncuttable && !blp_has_room(d, s, USUAL_BYTES);
	if (full && !blp_is_closed(d)) {
		blp_poll(d, s);
		blp_advance(d);
		full = !blp_has_room(d, s, USUAL_BYTES);
	}
	pthread_mutex_unlock(&d->lock);
	return full;
}

const struct gp_code *gp_blp_takes_later(CUcontext context, CUstream stream, const struct gp_launch *l)
{
	struct gp_domain *d = blp_domain_of(context, stream);
	const struct gp_code *code = gp_code_of(l->function);
	if (!d || blp_separated() || gp_blp_may_load(context, l->function) || !can_be_logged(l, code))
		return NULL;
	struct blp_shape shape = blp_shape_of(d, l->function, code, l->grid, l->block, l->shared_bytes);
	return shape.sound && is_certain(d, l, shape.cluster) ? code : NULL;
}

CUresult gp_blp_take_late(void)
{
	return blp_late ? __atomic_exchange_n((CUresult *)&blp_late, 0, __ATOMIC_ACQ_REL) : 0;
}

bool gp_blp_complete(CUfunction function, struct gp_arguments *a)
{
	static const CUdeviceptr none;
	const struct gp_code *code = gp_code_of(function);
	if (!code || !has_arguments(code, a->parameters, a->extra))
		return false;
	if (a->parameters || !a->extra) {
		void **parameters = malloc((code->parameters + 1u) * sizeof *parameters);
		if (!parameters)
			return false;
		blp_with_hidden(parameters, a->parameters, code->parameters, &none);
		*a = (struct gp_arguments){parameters, a->extra, parameters};
		return true;
	}
	struct {
		void *extra[5];
		size_t size;
		char bytes[];
	} *memory = malloc(sizeof *memory + code->bytes + 1);
	if (!memory)
		return false;
	gp_blp_pack(code, NULL, a->extra, memory->bytes);
	memory->size = code->bytes + are_too_many(code, a->extra); // for the driver to refuse
	memory->extra[0] = (void *)CU_LAUNCH_PARAM_BUFFER_POINTER;
	memory->extra[1] = memory->bytes;
	memory->extra[2] = (void *)CU_LAUNCH_PARAM_BUFFER_SIZE;
	memory->extra[3] = &memory->size;
	memory->extra[4] = NULL;
	*a = (struct gp_arguments){NULL, memory->extra, memory};
	return true;
}
