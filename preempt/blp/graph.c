// graph.c - graphs that can be stopped: those that hold guarded kernels only.
//
// The program's instance does not change; its kernels always run. A twin of it has kernels with records, and is launched in its place
// where launches are stopped. A twin that was cut is launched again: its records make every block exit that has run. A twin is in flight
// at most once, since it has one set of records. CUDA orders the launches of one instance on all streams, so the instance and its twin
// are in flight together on one stream only.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/objects/objects.h"

#include <stdlib.h>
#include <string.h>

enum {
	TWINS = 1024,
};

static struct blp_twin twins[TWINS];
static _Atomic uint32_t used; // places, ever
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static struct blp_twin *find(CUgraphExec exec)
{
	const struct gp_object *o = gp_graph_find(exec);
	return o ? o->graph.twin : NULL;
}

// Takes records behind those of the log, in whole granules. Returns the first; 0: there are too few. making is held.
static uint32_t take_records(struct gp_domain *d, uint32_t count)
{
	uint32_t granules = (count + BLP_GRANULE - 1) / BLP_GRANULE, run = 0;
	for (uint32_t i = 0; i < BLP_GRANULES; i++) {
		run = d->granule[i] ? 0 : run + 1;
		if (run == granules) {
			memset(&d->granule[i + 1 - run], 1, run);
			return BLP_RECORDS + (i + 1 - run) * BLP_GRANULE;
		}
	}
	return 0;
}

static void give_records(struct gp_domain *d, uint32_t first, uint32_t count)
{
	memset(&d->granule[(first - BLP_RECORDS) / BLP_GRANULE], 0, (count + BLP_GRANULE - 1) / BLP_GRANULE);
}

static bool attribute_set(CUgraphNode node, int id)
{
	struct gp_launch_attribute value = {0};
	// An older driver does not know the attribute: it is not set then.
	return !gp_driver.cuGraphKernelNodeGetAttribute(node, id, &value.value) && value.value.cooperative;
}

// The code of a node's kernel; NULL: it cannot be stopped.
static const struct gp_code *guarded(CUgraphNode node, struct gp_kernel_node *k)
{
	if (gp_driver.cuGraphKernelNodeGetParams(node, k) || !k->parameters ||
	    !blp_can_number(k->function ? k->function : k->kernel, k->grid,
			    attribute_set(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)) ||
	    attribute_set(node, CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION))
		return NULL;
	return gp_code_of(k->function ? k->function : k->kernel);
}

// The number of kernels in the graph, whose nodes it puts in order; 0: it cannot be stopped.
static uint32_t kernels_of(CUgraph graph, CUgraphNode **nodes, size_t *count)
{
	uint32_t kernels = 0;
	*nodes = NULL;
	if (gp_driver.cuGraphGetNodes(graph, NULL, count) || !*count || *count > BLP_GRANULES * BLP_GRANULE ||
	    !(*nodes = calloc(*count, sizeof **nodes)) || gp_driver.cuGraphGetNodes(graph, *nodes, count))
		return 0;
	for (size_t i = 0; i < *count; i++) {
		struct gp_kernel_node k;
		int type;
		if (gp_driver.cuGraphNodeGetType((*nodes)[i], &type))
			return 0;
		if (type == CU_GRAPH_NODE_TYPE_EMPTY)
			continue;
		if (type != CU_GRAPH_NODE_TYPE_KERNEL || !guarded((*nodes)[i], &k))
			return 0;
		kernels++;
	}
	return gp_graph_order(graph, *nodes, *count) ? kernels : 0;
}

// Notes how a kernel is launched alone.
static bool note(const struct gp_domain *d, struct blp_entry *e, const struct gp_code *code,
		 const struct gp_kernel_node *k, CUgraphNode node)
{
	bool cooperative = attribute_set(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
	struct gp_launch_attribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
	if (!(e->arguments = malloc(code->bytes)) || !(e->attributes = calloc(2, sizeof cluster)))
		return false;
	e->kind = BLP_LAUNCH;
	e->function = k->function ? k->function : k->kernel;
	memcpy(e->grid, k->grid, sizeof e->grid);
	memcpy(e->block, k->block, sizeof e->block);
	e->shared_bytes = k->shared_bytes;
	struct blp_shape shape = blp_shape_of(d, e->function, code, e->grid, e->block, e->shared_bytes);
	e->cluster = shape.cluster;
	e->on_sm = shape.on_sm;
	e->argument_bytes = code->bytes;
	gp_blp_pack(code, k->parameters, NULL, e->arguments);
	if (!gp_driver.cuGraphKernelNodeGetAttribute(node, cluster.id, &cluster.value) && cluster.value.cluster[0]) {
		e->attributes[e->attribute_count++] = cluster;
		e->cluster = cluster.value.cluster[0] * cluster.value.cluster[1] * cluster.value.cluster[2];
	}
	if (!e->cluster || blp_blocks(e) % e->cluster)
		e->cluster = 1;
	e->shift = shape.whole || cooperative ? GPREEMPT_WHOLE : blp_shift(e, (uint32_t)d->gpu->sms);
	if (cooperative) {
		e->attributes[e->attribute_count] = (struct gp_launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
		e->attributes[e->attribute_count++].value.cooperative = 1;
	}
	return true;
}

static bool set_records(struct blp_twin *t, CUgraphNode *nodes, size_t count)
{
	uint32_t next = t->first;
	for (size_t i = 0; i < count; i++) {
		struct gp_kernel_node k;
		int type;
		if (gp_driver.cuGraphNodeGetType(nodes[i], &type))
			return false;
		if (type != CU_GRAPH_NODE_TYPE_KERNEL)
			continue;
		const struct gp_code *code = guarded(nodes[i], &k);
		if (!code)
			return false;
		struct blp_entry *e = &t->kernel[next - t->first];
		if (!note(t->domain, e, code, &k, nodes[i]))
			return false;
		t->windows[next - t->first] = blp_windows(blp_blocks(e), e->cluster, e->shift);
		CUdeviceptr record = (t->domain->arena + next++ * sizeof(struct gpreempt_record)) | e->shift;
		void *parameters[code->parameters + 1];
		memcpy(parameters, k.parameters, code->parameters * sizeof *parameters);
		parameters[code->parameters] = &record;
		k.parameters = parameters;
		if (gp_driver.cuGraphExecKernelNodeSetParams(t->own, nodes[i], &k))
			return false;
	}
	return true;
}

// making is held. The driver keeps what it has.
static void leave_place(struct blp_twin *t)
{
	free(t->windows);
	free(t->over);
	for (uint32_t i = 0; t->kernel && i < t->count; i++) {
		free(t->kernel[i].arguments);
		free(t->kernel[i].attributes);
	}
	free(t->kernel);
	*t = (struct blp_twin){0};
}

// making is held, and the context is current.
static void unmake(struct blp_twin *t)
{
	if (t->own)
		gp_driver.cuGraphExecDestroy(t->own);
	if (t->plain)
		gp_driver.cuEventDestroy(t->plain);
	if (t->zeroed)
		gp_driver.cuEventDestroy(t->zeroed);
	if (t->first)
		give_records(t->domain, t->first, t->count);
	leave_place(t);
}

// Whether the driver says of all kernels that they have the least priority.
static bool have_least(CUgraphNode *nodes, size_t count)
{
	bool all = true;
	for (size_t i = 0; i < count && all; i++) {
		struct gp_launch_attribute priority = {.value.priority = BLP_DEFAULT_PRIORITY};
		int type = 0;
		all = !gp_driver.cuGraphNodeGetType(nodes[i], &type) &&
		      (type != CU_GRAPH_NODE_TYPE_KERNEL ||
		       (!gp_driver.cuGraphKernelNodeGetAttribute(nodes[i], CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority.value) &&
			priority.value.priority == BLP_DEFAULT_PRIORITY));
	}
	return all;
}

static bool make(struct blp_twin *t, struct gp_domain *d, CUgraph graph, CUgraphNode *nodes, size_t count,
		 uint32_t kernels, unsigned long long flags)
{
	void *pinned = d->graph_image;
	*t = (struct blp_twin){.domain = d, .count = kernels};
	if (!(t->first = take_records(d, kernels)) || !(t->windows = calloc(kernels, sizeof *t->windows)) ||
	    !(t->over = calloc(kernels, sizeof *t->over)) || !(t->kernel = calloc(kernels, sizeof *t->kernel)) ||
	    gp_driver.cuEventCreate(&t->plain, CU_EVENT_DISABLE_TIMING) ||
	    gp_driver.cuEventCreate(&t->zeroed, CU_EVENT_DISABLE_TIMING) ||
	    (!pinned &&
	     gp_driver.cuMemHostAlloc(&pinned, BLP_GRANULES * BLP_GRANULE * sizeof *t->image, CU_MEMHOSTALLOC_PORTABLE)))
		return false;
	d->graph_image = pinned; // for all graphs, and never freed before the domain ends: a free waits for the whole context
	t->image = d->graph_image + (t->first - BLP_RECORDS);
	// Under MPS all streams of a BE process have the least priority. Where the nodes have it too, a launch on a stream of ours is no more
	// urgent (blp_priority_on). A driver before CUDA 11.7 does not know the flag.
	unsigned long long by_node = CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
	bool all_least = gp_settings.mps && d->gpu->mps && gp_settings.level == GP_LEVELS - 1 && have_least(nodes, count);
	return ((all_least && !gp_driver.cuGraphInstantiate(&t->own, graph, by_node)) ||
		!gp_driver.cuGraphInstantiate(&t->own, graph, flags & by_node)) &&
	       set_records(t, nodes, count);
}

static bool in_flight(struct gp_domain *d, const struct blp_twin *t) { return t->upto > d->stream_of[t->stream].done; }

// Unmakes the twins whose last launch was uncuttable as they were dropped, and has ended. making is held.
static void reclaim(void)
{
	for (uint32_t i = 0; i < used; i++) {
		struct blp_twin *t = &twins[i];
		struct gp_domain *d = t->own && !t->of ? t->domain : NULL;
		CUcontext context = d ? d->context : NULL; // NULL: blp_forget_twins follows
		bool pushed;
		if (!context || !blp_enter(context, &pushed))
			continue;
		pthread_mutex_lock(&d->lock);
		blp_still_host_blocked(d);
		bool ended = d->context == context && (d->given_up || !in_flight(d, t));
		pthread_mutex_unlock(&d->lock);
		if (ended)
			unmake(t);
		blp_leave(pushed);
	}
}

void gp_blp_graph_instantiated(CUgraphExec exec, CUgraph graph)
{
	struct gp_object *o = gp_graph_find(exec);
	CUgraphNode *nodes = NULL;
	CUcontext context = NULL;
	unsigned long long flags = 0;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	size_t count;
	uint32_t kernels;

	if (!o || !graph || !gp_images_rewritten || !gp_driver.cuGraphExecKernelNodeSetParams ||
	    !gp_driver.cuGraphInstantiate || !gp_driver.cuGraphKernelNodeGetParams ||
	    !gp_driver.cuGraphKernelNodeGetAttribute || !gp_driver.cuGraphGetNodes || !gp_driver.cuGraphNodeGetType ||
	    !gp_driver.cuGraphGetEdges || gp_driver.cuCtxGetCurrent(&context) || !context)
		return;
	struct gp_domain *d = blp_domain_of(context, GP_STREAM_LEGACY);
	if (!d || d->given_up || (gp_driver.cuGraphExecGetFlags && gp_driver.cuGraphExecGetFlags(exec, &flags)) ||
	    flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		return;
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode); // allocations, beside a capture
	if ((kernels = kernels_of(graph, &nodes, &count))) {
		pthread_mutex_lock(&making);
		reclaim();
		uint32_t i = 0;
		while (i < TWINS && twins[i].own)
			i++;
		if (d->context != context) // it has ended since
			i = TWINS;
		if (i < TWINS && make(&twins[i], d, graph, nodes, count, kernels, flags)) {
			twins[i].of = exec;
			o->graph.twin = &twins[i];
			if (i >= used)
				used = i + 1;
		} else if (i < TWINS) {
			unmake(&twins[i]);
		}
		pthread_mutex_unlock(&making);
	}
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	free(nodes);
}

// Waits for the launch in flight. Gives the lock up meanwhile, so that another thread may launch the twin first. False: the
// launch is uncuttable, or the driver refused.
static bool wait_for(struct gp_domain *d, struct blp_twin *t)
{
	struct blp_stream *s = &d->stream_of[t->stream];
	return blp_wait_or_let_run(d, s, t->upto) && !s->uncuttable;
}

// Whether the program's own instance is in flight and the driver does not order it before new work of the stream.
static bool plain_elsewhere(struct blp_twin *t, CUstream stream)
{
	t->ran_plain = t->recording || (t->ran_plain && blp_query(t->plain) == CUDA_ERROR_NOT_READY);
	return t->ran_plain && (t->plain_on != stream || stream == GP_STREAM_PER_THREAD);
}

void blp_graphs_leave(CUstream stream)
{
	for (uint32_t i = 0; i < used; i++) {
		struct gp_domain *d = twins[i].domain;
		if (!d)
			continue;
		pthread_mutex_lock(&d->lock);
		if (twins[i].plain_on == stream)
			twins[i].plain_on = GP_STREAM_PER_THREAD;
		pthread_mutex_unlock(&d->lock);
	}
}

// Puts the launch of the program's own instance behind the twin.
static void come_behind(struct gp_operation *o, struct blp_twin *t)
{
	struct gp_domain *d = t->domain;
	struct blp_stream *s;
	CUevent end = NULL;
	int m = -1;
	pthread_mutex_lock(&d->lock);
	uint64_t generation = d->generation;
	if (t->of == o->graph && !d->given_up && in_flight(d, t) && !wait_for(d, t) &&
	    (s = &d->stream_of[t->stream])->uncuttable) { // it runs to its end
		m = blp_marker_behind(d, s->first_marker, t->upto);
		end = m >= 0 ? blp_use_marker(d, m) : s->host_block;
	}
	pthread_mutex_unlock(&d->lock);
	blp_enter_late();
	if (end)
		gp_driver.cuStreamWaitEvent(o->stream, end, 0); // may wait for room in the queue
	if (m >= 0) {
		pthread_mutex_lock(&d->lock);
		if (d->generation == generation) // else the domain has ended
			blp_leave_marker(d, m);
		pthread_mutex_unlock(&d->lock);
	}
	o->twin = t;
}

void blp_graph_launched(struct gp_operation *o)
{
	struct blp_twin *t = o->twin;
	struct gp_domain *d = t->domain;
	if (!d) // the program destroys what it launches
		return;
	pthread_mutex_lock(&d->lock);
	CUevent plain = !o->result && t->of == o->graph ? t->plain : NULL;
	if (plain) {
		t->plain_on = GP_STREAM_PER_THREAD;
		t->recording++;
	}
	pthread_mutex_unlock(&d->lock);
	if (!plain)
		return;
	CUresult result = gp_driver.cuEventRecord(plain, o->stream); // may wait for room in the queue
	pthread_mutex_lock(&d->lock);
	if (t->domain == d && t->plain == plain) { // else the program has destroyed it meanwhile
		t->ran_plain = true;
		t->retired |= result; // nothing tells when that launch is over
		if (!--t->recording)
			t->plain_on = o->stream;
	}
	pthread_mutex_unlock(&d->lock);
}

// One thread may end the graph while another ends the context: the second finds the place free, or another graph's.
static void drop(struct blp_twin *t, CUgraphExec of)
{
	bool pushed;
	pthread_mutex_lock(&making);
	struct gp_domain *d = t->of == of ? t->domain : NULL;
	pthread_mutex_unlock(&making);
	if (!d)
		return;
	int mode = gp_relax_captures();
	pthread_mutex_lock(&d->lock);
	CUcontext context = d->context;
	wait_for(d, t);
	bool ends = in_flight(d, t) && !d->given_up; // uncuttable: its instance and records stay until reclaim
	pthread_mutex_unlock(&d->lock);
	pthread_mutex_lock(&making);
	if (t->of == of && t->domain == d) {
		struct gp_object *o = gp_graph_find(of);
		t->of = NULL;
		if (o && o->graph.twin == t)
			o->graph.twin = NULL;
		if (!ends && context && blp_enter(context, &pushed)) {
			unmake(t);
			blp_leave(pushed);
		}
	}
	pthread_mutex_unlock(&making);
	gp_unrelax_captures(mode);
}

// From then on launches of the instance are barriers.
void gp_blp_graph_changed(CUgraphExec exec)
{
	struct blp_twin *t = find(exec);
	if (t)
		drop(t, exec);
}

void blp_drop_twins(struct gp_domain *d)
{
	for (uint32_t i = 0; i < used; i++) {
		CUgraphExec of = twins[i].of;
		if (of && twins[i].domain == d)
			drop(&twins[i], of);
	}
	pthread_mutex_lock(&making); // a thread that was ending a graph of it has ended that
	pthread_mutex_unlock(&making);
}

void blp_lock_twins(void) { pthread_mutex_lock(&making); }
void blp_unlock_twins(void) { pthread_mutex_unlock(&making); }

void blp_forget_twins(struct gp_domain *d)
{
	for (uint32_t i = 0; i < used; i++) {
		struct gp_object *o = twins[i].of ? gp_graph_find(twins[i].of) : NULL;
		if (twins[i].domain != d)
			continue;
		if (o && o->graph.twin == &twins[i])
			o->graph.twin = NULL;
		leave_place(&twins[i]);
	}
}

bool blp_graph_is_complete(struct blp_entry *e)
{
	struct blp_twin *t = e->twin;
	bool complete = true;
	for (uint32_t i = 0; i < t->count; i++) {
		struct gpreempt_record *r = &t->image[i];
		bool ran = r->state != GPREEMPT_FROZEN || r->count >= t->windows[i];
		complete &= ran;
		r->state = 0;
		r->done = r->count = ran ? GPREEMPT_MOST : r->count;
	}
	return complete;
}

static bool log_twin(struct gp_operation *o, struct gp_domain *d, struct blp_twin *t)
{
	uint64_t deadline = 0;

	pthread_mutex_lock(&d->lock);
	for (bool patient = true;;) {
		struct blp_stream *stream;
		blp_give_way(d);
		if (d->context != o->handle || d->given_up || t->of != o->graph || t->retired ||
		    !(stream = blp_find_stream(d, o->stream, true)) || !blp_may_log(stream))
			break;
		if (blp_is_closed(d) && patient) {
			blp_begin_late(o->handle);
			if (!deadline)
				deadline = blp_patience();
			patient = blp_wait_turn(d, deadline);
			continue;
		}
		if (blp_is_host_blocked(d, stream) || plain_elsewhere(t, o->stream))
			break;
		if (in_flight(d, t)) {
			blp_begin_late(o->handle);
			if (!wait_for(d, t))
				break;
			continue;
		}
		if (!blp_has_room(d, stream, 0)) {
			blp_begin_late(o->handle);
			if (!blp_make_room(d, stream, 0)) {
				if (!blp_is_closed(d))
					break;
				blp_wait_step(d, 0);
			}
			continue; // the lock was given up: another operation may be on its way by now
		}
		if (blp_is_closed(d) && patient)
			continue;
		bool now = !blp_is_stopped(d);
		struct blp_entry *e = blp_append(d, stream, BLP_GRAPH, now, 0, NULL);
		if (!e)
			break;
		if ((blp_separated() && blp_is_crossed(o, d)) || !blp_leave_own(stream)) {
			blp_unappend(d, stream);
			break;
		}
		e->twin = t;
		t->blank = true;
		t->parted = false; // that was the launch before
		uint64_t before = t->upto;
		t->stream = e->stream;
		t->upto = d->head;
		o->result = 0;
		if (now) {
			o->result = blp_drive_graph(d, e);
			if (o->result) {
				blp_unappend(d, stream);
				t->upto = before;
			} else {
				blp_appended(d, stream);
			}
		}
		pthread_mutex_unlock(&d->lock);
		if (!o->result)
			gp_count(&d->gpu->stops.launches, t->count);
		return true;
	}
	pthread_mutex_unlock(&d->lock);
	return false;
}

// With the first launch the driver may load the kernels' code: see load in launch.c. False: it refused.
static bool load(const struct gp_operation *o, struct blp_twin *t)
{
	if (t->loaded || !blp_loads_lazily || !o->context)
		return true;
	uint64_t context = 1ull << (o->context - gp_context);
	pthread_mutex_lock(&making);
	uint32_t count = t->of == o->graph ? t->count : 0;
	CUfunction *function = count ? calloc(count, sizeof *function) : NULL;
	for (uint32_t i = 0; function && i < count; i++)
		function[i] = t->kernel[i].function;
	pthread_mutex_unlock(&making);
	bool loaded = function;
	for (uint32_t i = 0; loaded && i < count; i++)
		loaded = gp_code_is_loaded(function[i], context) || gp_code_load(function[i], context);
	free(function);
	t->loaded = loaded;
	return loaded;
}

static bool launch_twin(struct gp_operation *o, struct blp_twin *t)
{
	struct gp_domain *d = o->handle ? blp_domain_for(o) : NULL;
	if (!d || d != t->domain)
		return false;
	blp_begin_crossing(o, d);
	bool launched = !blp_flush_others(d, o->handle, o->stream) && load(o, t) && log_twin(o, d, t);
	blp_end_crossing(o, d);
	if (!launched)
		blp_wait_as_at_gate(o, d);
	return launched;
}

bool blp_launch_graph(struct gp_operation *o)
{
	struct blp_twin *t = blp_inside ? NULL : find(o->graph);
	if (!t || launch_twin(o, t))
		return t;
	come_behind(o, t);
	return false;
}
