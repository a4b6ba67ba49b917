// model.c - what CUDA promises of a program, worked out operation by operation.
#include "model.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

static void add(set *s, int moment) { s->bits[moment / 64] |= 1ull << moment % 64; }

static bool has(const set *s, int moment) { return s->bits[moment / 64] >> moment % 64 & 1; }

static void join(set *s, const set *other)
{
	for (int i = 0; i < MOMENTS / 64; i++)
		s->bits[i] |= other->bits[i];
}

static set common(const set *a, const set *b)
{
	set c;
	for (int i = 0; i < MOMENTS / 64; i++)
		c.bits[i] = a->bits[i] & b->bits[i];
	return c;
}

static set lacking(const set *wanted, const set *there)
{
	set c;
	for (int i = 0; i < MOMENTS / 64; i++)
		c.bits[i] = wanted->bits[i] & ~there->bits[i];
	return c;
}

static bool empty(const set *s)
{
	for (int i = 0; i < MOMENTS / 64; i++)
		if (s->bits[i])
			return false;
	return true;
}

static int host(int position) { return 2 * position; }

static int device(int position) { return 2 * position + 1; }

// The moment and all that is certainly before it.
static set until(const struct plan *m, int moment)
{
	set s = m->before[moment];
	add(&s, moment);
	return s;
}

static bool on_stream(const struct operation *o)
{
	switch (o->kind) {
	case KERNEL:
	case KERNEL_COPY:
	case MEMSET:
	case COPY:
	case UPLOAD:
	case READ:
	case HOST_FUNCTION:
	case RECORD:
	case WAIT_EVENT:
	case WAIT_VALUE:
	case WRITE_VALUE:
	case FREE_ASYNC:
	case LAUNCH:
	case FORK:
	case JOIN: return true;
	default: return false;
	}
}

static bool spins(const struct operation *o) { return o->kind == WAIT_VALUE && o->form == BY_KERNEL; }

static int place_of_stream(const struct operation *o, int s) { return PLACE_STREAM + o->device * STREAMS + s; }

// Within the memory of a device nobody waits, whatever the name of the call.
bool synchronous(const struct operation *o)
{
	return o->kind == READ || (o->kind == UPLOAD && o->form == SYNCHRONOUS) ||
	       (o->kind == COPY && o->form == SYNCHRONOUS && !(device_buffer(o->buffer) && device_buffer(o->source)));
}

// Calls that may wait, for more than other threads' calls.
bool may_wait(const struct operation *o)
{
	switch (o->kind) {
	case EVENT_SYNC:
	case STREAM_SYNC:
	case CONTEXT_SYNC:
	case FREE:
	case AWAIT:
	case STREAM_RENEW:
	case MODULE_RENEW:
	case READ:
	case UPLOAD:
	case EPISODE: return true;
	case EVENT_QUERY:
	case STREAM_QUERY: return o->form == POLL;
	case MEMSET: return o->form == AT_ONCE;
	case COPY: return o->form == SYNCHRONOUS;
	case FREE_ASYNC: // its second half makes memory
		return true;
	default: return false;
	}
}

// Calls that CUDA forbids beside captures that are not relaxed.
static bool unsafe(const struct operation *o)
{
	return o->kind == EVENT_SYNC || o->kind == EVENT_QUERY || o->kind == EPISODE || o->kind == MODULE_RENEW ||
	       o->kind == FREE || o->kind == FREE_ASYNC || synchronous(o) ||
	       (o->kind == COPY && o->form == SYNCHRONOUS) || (o->kind == MEMSET && o->form == AT_ONCE);
}

static void touch(struct accesses *a, int place, bool write, bool at_host)
{
	if (a->count < ACCESSES)
		a->list[a->count++] = (struct access){(int16_t)place, write, at_host};
}

static void touch_cells(struct accesses *a, int buffer, int first, int count, bool write, bool at_host)
{
	for (int c = first; c < first + count; c++)
		touch(a, buffer * CELLS + c, write, at_host);
}

// Of memory. Graphs have those of all their operations.
static void accesses_of(const struct plan *m, const struct operation *o, struct accesses *a)
{
	switch (o->kind) {
	case KERNEL:
	case MEMSET:
	case UPLOAD: touch_cells(a, o->buffer, o->first, o->count, true, false); break;
	case COPY:
	case KERNEL_COPY:
		touch_cells(a, o->buffer, o->first, o->count, true, false);
		touch_cells(a, o->source, o->source_first, o->count, false, false);
		break;
	case READ: touch_cells(a, o->buffer, o->first, o->count, false, false); break;
	case WAIT_VALUE:
		if (spins(o))
			touch_cells(a, o->buffer, o->first, o->count, true, false);
		break;
	case HOST_FUNCTION:
		if (o->form == CHECKS || o->form == UPDATES)
			touch_cells(a, o->buffer, o->first, o->count, o->form == UPDATES, false);
		break;
	case CPU: touch_cells(a, o->buffer, o->first, o->count, o->form == UPDATES, true); break;
	case FREE: touch_cells(a, o->buffer, 0, CELLS, true, true); break;
	case FREE_ASYNC: touch_cells(a, o->buffer, 0, CELLS, true, false); break;
	case LAUNCH:
		for (int i = 0; i < m->graph[o->graph].count; i++)
			accesses_of(m, &m->graph[o->graph].operation[i], a);
		break;
	default: break;
	}
}

// Of handles: the call reads them, or another one takes their place.
static void handles_of(const struct plan *m, const struct operation *o, struct accesses *a)
{
	if (on_stream(o) || o->kind == STREAM_SYNC || o->kind == STREAM_QUERY || o->kind == BEGIN || o->kind == END)
		touch(a, place_of_stream(o, o->stream), false, true);
	if (o->kind == STREAM_RENEW)
		touch(a, place_of_stream(o, o->stream), true, true);
	if (o->kind == FORK || o->kind == JOIN)
		touch(a, place_of_stream(o, o->stream2), false, true);
	int event = PLACE_EVENT + o->device * EVENTS + o->event;
	if (o->kind == RECORD || o->kind == WAIT_EVENT || o->kind == EVENT_SYNC || o->kind == EVENT_QUERY)
		touch(a, event, false, true);
	if (o->kind == EVENT_RENEW)
		touch(a, event, true, true);
	if (o->kind == END || o->kind == LAUNCH || o->kind == BUILD || o->kind == CHANGE || o->kind == UPDATE)
		touch(a, PLACE_GRAPH + o->graph, true, true);
	int module = PLACE_MODULE + o->device * MODULES + o->module - 1;
	if (o->module)
		touch(a, module, o->kind == MODULE_RENEW, true);
	if (o->module && o->kind == KERNEL && m->threads > 1) // it ends before its code goes; else the driver waits for it
		touch(a, module, false, false);
	if (o->kind == FREE || o->kind == FREE_ASYNC) {
		touch(a, PLACE_BUFFER + o->buffer, true, true);
	} else {
		struct accesses cells = {0};
		if (o->kind != LAUNCH)
			accesses_of(m, o, &cells);
		for (int i = 0; i < cells.count; i++)
			touch(a, PLACE_BUFFER + cells.list[i].place / CELLS, false, true);
		if (o->kind == BUILD || o->kind == CHANGE || o->kind == UPDATE)
			touch(a, PLACE_BUFFER + o->buffer, false, true);
	}
}

static uint32_t after_kernel(const struct operation *o, uint32_t cell)
{
	switch (o->form) {
	case INCREMENT:
	case MARLIN:
	case LAMPORT: return cell + 1;
	case BARRIER: return cell + 2;
	case PLAIN: return cell + o->value;
	default: return cell * 3 + o->value;
	}
}

// Does to the cells what the operation does. False: it makes no sense.
static bool carry_out(struct plan *m, const struct operation *o)
{
	uint32_t *to = m->value + o->buffer * CELLS, *from = m->value + o->source * CELLS;
	bool *known = m->known + o->buffer * CELLS, *source_known = m->known + o->source * CELLS;
	for (int i = 0; i < o->count; i++) {
		int c = o->first + i, f = o->source_first + i;
		switch (o->kind) {
		case KERNEL:
			if (!known[c])
				return false;
			to[c] = after_kernel(o, to[c]);
			break;
		case WAIT_VALUE:
			if (!spins(o))
				break;
			if (!known[c])
				return false;
			to[c]++;
			break;
		case CPU:
		case HOST_FUNCTION:
			if (o->form != CHECKS && o->form != UPDATES)
				break;
			if (!known[c])
				return false;
			if (o->form == UPDATES)
				to[c] = to[c] * 3 + o->value;
			break;
		case READ:
			if (!known[c])
				return false;
			break;
		case MEMSET:
			to[c] = o->form == BY_8  ? (o->value & 0xff) * 0x01010101u :
				o->form == BY_16 ? (o->value & 0xffff) * 0x10001u :
						   o->value;
			known[c] = true;
			break;
		case UPLOAD:
			to[c] = o->value;
			known[c] = true;
			break;
		case COPY:
		case KERNEL_COPY:
			if (!source_known[f])
				return false;
			to[c] = from[f];
			known[c] = true;
			break;
		default: break;
		}
	}
	if (o->kind == FREE || o->kind == FREE_ASYNC)
		memset(known, 0, CELLS);
	if (o->kind == LAUNCH)
		for (int i = 0; i < m->graph[o->graph].count; i++)
			if (!carry_out(m, &m->graph[o->graph].operation[i]))
				return false;
	return true;
}

// Whether work of the one stream waits for that of the other: of one device.
static bool ordered(int a, int b) { return (a == 0 && blocking_stream(b)) || (b == 0 && blocking_stream(a)); }

// The moments that come before work on a stream, put there by a thread that knows of the calls in start. Where the thread asks about the
// stream or waits for it: the moments of which it then hears, of the legacy stream's work only by what is behind that.
static void behind(const struct plan *m, int device_number, int stream, int capture, bool asks, const set *start,
		   set *before, set *may)
{
	for (int j = 0; j < m->count; j++) {
		const struct operation *p = &m->operation[j];
		if (!on_stream(p) || p->device != device_number || m->capture_of[j] != capture || !has(start, host(j)))
			continue;
		int s = p->kind == FORK ? p->stream2 : p->stream;
		bool same = s == stream && m->generation_of[j] == m->generation[device_number * STREAMS + stream];
		bool idle = p->kind == WAIT_EVENT &&
			    empty(&m->taken[j]); // for an event that may never have been recorded: nothing
		bool related = !capture && ordered(s, stream) && (!asks || stream == 0);
		if (!idle && (same || (related && m->generation_of[j] == m->generation[device_number * STREAMS + s]))) {
			set all = until(m, device(j));
			join(before, &all);
		}
		if (same || related) {
			join(may, &m->may[device(j)]);
			add(may, device(j));
		}
	}
}

// The moments that a wait for the event covers: those that all records have in common which the wait may see.
static bool recorded(const struct plan *m, const struct operation *o, const set *start, set *taken, set *may)
{
	bool any = false, certain = false;
	memset(taken, 0, sizeof *taken);
	for (int j = 0; j < m->count; j++) {
		const struct operation *p = &m->operation[j];
		if (p->kind != RECORD || p->device != o->device || p->event != o->event ||
		    m->event_generation_of[j] != m->event_generation[o->device * EVENTS + o->event])
			continue;
		bool replaced = false;
		for (int k = j + 1; k < m->count && !replaced; k++)
			replaced = m->operation[k].kind == RECORD && m->operation[k].device == p->device &&
				   m->operation[k].event == p->event && has(start, host(k)) &&
				   has(&m->before[host(k)], host(j));
		if (replaced)
			continue;
		set all = until(m, device(j));
		*taken = any ? common(taken, &all) : all;
		join(may, &m->may[device(j)]);
		add(may, device(j));
		any = true;
		certain |= has(start, host(j));
	}
	if (!certain) // it may see none
		memset(taken, 0, sizeof *taken);
	return any;
}

static bool is_created(int s) { return s > THREADS; }

// Whether a capture that goes on holds a launch of the graph, which is what the graph was then.
static bool graph_is_captured(const struct plan *m, int graph, int but)
{
	for (int j = 0; j < m->count; j++)
		for (int t = 0; t < m->threads; t++)
			if (t != but && m->capturing[t] && m->capture_of[j] == m->capturing[t] &&
			    m->operation[j].kind == LAUNCH && m->operation[j].graph == graph)
				return true;
	return false;
}

// A capture and streams. False: not now.
static bool capture_allows(const struct plan *m, const struct operation *o, int *capture)
{
	int mine = m->capturing[o->thread];
	*capture = 0;
	const int8_t *at = m->stream_captured + o->device * STREAMS;
	if (on_stream(o) || o->kind == STREAM_SYNC || o->kind == STREAM_QUERY || o->kind == STREAM_RENEW) {
		int c = at[o->stream];
		if (o->stream == 0) // not beside a capture on a blocking stream, and no thread may know of that
			for (int s = 0; s < STREAMS; s++)
				if (at[s] && blocking_stream(s))
					return false;
		if (c) {
			if (c != mine)
				return false;
			switch (o->kind) {
			case KERNEL:
			case KERNEL_COPY:
			case LAUNCH:
			case FORK:
			case JOIN: break;
			case MEMSET:
				if (o->form == AT_ONCE)
					return false;
				break;
			case COPY:
				if (o->form == SYNCHRONOUS)
					return false;
				break;
			case HOST_FUNCTION:
				if (o->form == CHECKS || o->form == WAITS)
					return false;
				break;
			default: return false;
			}
			*capture = c;
			if (m->captured_operations[o->thread] >= LAUNCHES - 1)
				return false;
		} else if (o->kind == JOIN || o->kind == FORK) {
			return false;
		}
	}
	switch (o->kind) {
	case BEGIN:
		if (mine || o->stream == 0 || at[o->stream] || m->owner[o->device * STREAMS + o->stream] != o->thread)
			return false;
		if (m->threads > 1 &&
		    (blocking_stream(o->stream) || (o->variant % 3 == 0 && !(m->features & WITH_globalcapture))))
			return false;
		for (int j = m->count - 1; j >= 0;
		     j--) // two launches of the graph may be asked of one program, not two captures at a time
			if (m->operation[j].thread == o->thread)
				return m->operation[j].kind != BEGIN;
		return true;
	case END:
		if (!mine || m->capture_stream[o->thread] != o->device * STREAMS + o->stream ||
		    !m->captured_operations[o->thread])
			return false;
		for (int s = 0; s < STREAMS; s++)
			if (at[s] == mine && s != o->stream && !m->joined[o->device * STREAMS + s])
				return false;
		return !graph_is_captured(m, o->graph, o->thread);
	case FORK:
		return at[o->stream] == mine && !at[o->stream2] && is_created(o->stream2) && o->stream2 != o->stream &&
		       m->owner[o->device * STREAMS + o->stream2] == o->thread &&
		       (m->threads == 1 || !blocking_stream(o->stream2));
	case JOIN: return at[o->stream] == mine && at[o->stream2] == mine && o->stream2 != o->stream;
	case BUILD:
	case CHANGE:
	case UPDATE: return !mine && !graph_is_captured(m, o->graph, -1);
	case CONTEXT_SYNC: return m->threads == 1 ? !mine : !(m->features & WITH_captures);
	default: break;
	}
	if (unsafe(o)) {
		if (mine && m->capture_mode[o->thread] != 2)
			return false;
		if (m->threads > 1 && (m->features & WITH_globalcapture) && (m->features & WITH_captures))
			return false;
	}
	return true;
}

enum verdict plan_add(struct plan *m, struct operation *o, set *missing)
{
	int i = m->count, t = o->thread, capture;
	memset(missing, 0, sizeof *missing);
	if (i == OPERATIONS || t >= m->threads || o->device >= m->devices)
		return SENSELESS;
	bool uses_stream = on_stream(o) || o->kind == STREAM_SYNC || o->kind == STREAM_QUERY ||
			   o->kind == STREAM_RENEW || o->kind == BEGIN || o->kind == END;
	int stream_index = o->device * STREAMS + o->stream;
	if (uses_stream) {
		if (o->stream >= 1 && o->stream <= THREADS && o->stream != 1 + t)
			return SENSELESS;
		if (m->owner[stream_index] >= 0 && m->owner[stream_index] != t)
			return SENSELESS;
	}
	if ((synchronous(o) || (o->kind == COPY && o->form == SYNCHRONOUS) || (o->kind == MEMSET && o->form == AT_ONCE)) &&
	    o->stream)
		return SENSELESS;
	if (o->kind == STREAM_RENEW && !is_created(o->stream))
		return SENSELESS;
	if (!capture_allows(m, o, &capture))
		return SENSELESS;

	set start = {{0}};
	if (m->last[t] >= 0)
		start = until(m, m->last[t]);
	if (m->last[t] < 0) // a thread begins when the program does
		memset(&start, 0, sizeof start);

	// Cells of devices are for kernels of that device.
	struct accesses cells = {0}, handles = {0};
	accesses_of(m, o, &cells);
	handles_of(m, o, &handles);
	if (cells.count == ACCESSES || handles.count == ACCESSES)
		return SENSELESS;
	for (int k = 0; k < cells.count; k++) {
		int b = cells.list[k].place / CELLS;
		if (device_buffer(b) ? b / BUFFERS != o->device : o->kind == FREE || o->kind == FREE_ASYNC)
			return SENSELESS;
		if (device_buffer(b) && (o->kind == CPU || o->kind == HOST_FUNCTION))
			return SENSELESS;
	}
	if ((o->kind == COPY || o->kind == KERNEL_COPY) && o->source == o->buffer &&
	    abs(o->first - o->source_first) < o->count)
		return SENSELESS;
	if (o->module && capture) // the graph would need it as long as it exists
		return SENSELESS;
	if (o->kind == BUILD && (o->nodes == 0 || o->nodes > LAUNCHES))
		return SENSELESS;
	if ((o->kind == BUILD || o->kind == CHANGE || o->kind == UPDATE) && device_buffer(o->buffer) &&
	    o->buffer / BUFFERS != o->device)
		return SENSELESS;
	if (o->kind == CHANGE || o->kind == UPDATE) {
		const struct graph *g = &m->graph[o->graph];
		if (!g->built || g->device != o->device || (o->kind == CHANGE && o->nodes >= g->count) ||
		    memcmp(g->buffer_generation, m->buffer_generation, sizeof g->buffer_generation) != 0)
			return SENSELESS;
	}
	if (o->kind == LAUNCH) {
		const struct graph *g = &m->graph[o->graph];
		if (!g->count || g->device != o->device || (capture && m->captured_operations[t] + g->count >= LAUNCHES))
			return SENSELESS;
		for (int k = 0; k < cells.count; k++)
			if (g->buffer_generation[cells.list[k].place / CELLS] !=
			    m->buffer_generation[cells.list[k].place / CELLS])
				return SENSELESS;
	}

	// The moments before these two.
	set before_device = start, may_device = start, before_host = start, may_host = start, taken = {{0}}, asked = {{0}};
	if (m->last[t] >= 0)
		join(&may_host, &m->may[m->last[t]]), join(&may_device, &m->may[m->last[t]]);
	if (capture) { // what is before a captured operation is of its capture
		memset(&before_device, 0, sizeof before_device);
		may_device = before_device;
	}
	if (on_stream(o)) {
		behind(m, o->device, o->stream, capture, false, &start, &before_device, &may_device);
		if (o->kind == JOIN)
			behind(m, o->device, o->stream2, capture, false, &start, &before_device, &may_device);
	}
	switch (o->kind) {
	case WAIT_EVENT:
	case EVENT_SYNC:
	case EVENT_QUERY: {
		set may = {{0}};
		if (!recorded(m, o, &start, &taken, &may) && o->kind != WAIT_EVENT)
			return SENSELESS;
		if (o->kind == WAIT_EVENT) {
			join(&before_device, &taken), join(&may_device, &may);
		} else if (o->kind == EVENT_SYNC || o->form == POLL) {
			join(&before_host, &taken), join(&may_host, &may);
		}
		asked = may;
		break;
	}
	case STREAM_SYNC:
	case STREAM_QUERY:
		behind(m, o->device, o->stream, 0, true, &start, &taken, &asked);
		join(&may_host, &asked);
		if (o->kind == STREAM_SYNC || o->form == POLL)
			join(&before_host, &taken);
		break;
	case CONTEXT_SYNC:
	case FREE:
	case STREAM_RENEW:
	case MODULE_RENEW:
		for (int j = 0; j < i; j++)
			if (on_stream(&m->operation[j]) && m->operation[j].device == o->device && !m->capture_of[j]) {
				set all = until(m, device(j));
				if (o->kind == CONTEXT_SYNC && has(&start, host(j)))
					join(&before_host, &all);
				if (o->kind != STREAM_RENEW) {
					join(&may_host, &m->may[device(j)]);
					add(&may_host, device(j));
				}
			}
		break;
	case AWAIT: {
		int post = m->position[o->other];
		if (post < 0 || m->operation[post].kind != POST || m->operation[post].thread == t)
			return SENSELESS;
		set all = until(m, host(post));
		join(&before_host, &all);
		break;
	}
	case LAUNCH:
		for (int j = 0; j < i; j++)
			if (m->operation[j].kind == LAUNCH && m->operation[j].graph == o->graph && !m->capture_of[j] &&
			    !capture && m->graph_generation_of[j] == m->graph_generation[o->graph]) {
				set all = until(m, device(j));
				join(&before_device, &all), join(&may_device, &m->may[device(j)]);
				add(&may_device, device(j));
			}
		break;
	default: break;
	}

	// Words that are waited for.
	struct word *w = &m->word[o->word];
	bool waits = o->kind == WAIT_VALUE || (o->kind == HOST_FUNCTION && o->form == WAITS);
	if (waits) {
		if (w->waiter >= 0 || (w->writer >= 0 && !has(&start, host(w->writer))))
			return SENSELESS;
		// Host functions may have one thread, which no stream may depend on through another.
		if (o->kind == HOST_FUNCTION && w->writer >= 0 && m->operation[w->writer].kind == WRITE_VALUE)
			return SENSELESS;
		if (w->writer >= 0) {
			int by = m->operation[w->writer].kind == RELEASE ? host(w->writer) : device(w->writer);
			set all = until(m, by);
			join(&before_device, &all), join(&may_device, &m->may[by]);
			add(&may_device, by);
		}
	}
	if (o->kind == WRITE_VALUE || o->kind == RELEASE) {
		if (w->writer >= 0)
			return SENSELESS;
		if (w->waiter >= 0 && o->kind == RELEASE && m->operation[w->waiter].thread != t)
			return SENSELESS;
		if (w->waiter >= 0 && o->kind == WRITE_VALUE &&
		    (m->threads > 1 || m->operation[w->waiter].kind == HOST_FUNCTION || has(&may_device, device(w->waiter))))
			return SENSELESS;
	}
	set functions = common(&may_device, &m->host_functions), known_complete = start;
	functions = lacking(&functions, &known_complete);
	if (o->kind == WRITE_VALUE && w->waiter >= 0 && m->waiting_functions && !empty(&functions))
		return SENSELESS;

	// No thread waits for ever: threads that others wait for do not wait in between.
	if (may_wait(o)) {
		set all = may_host;
		if (on_stream(o))
			join(&all, &may_device);
		if (m->threads > 1 && m->open[t])
			return SENSELESS;
		set stuck = common(&all, &m->pending), called = common(&all, &m->host_functions);
		called = lacking(&called, &start);
		if (m->threads == 1 && (!empty(&stuck) || (m->waiting_functions && !empty(&called))))
			return SENSELESS;
		bool wide = o->kind == FREE || o->kind == FREE_ASYNC || o->kind == CONTEXT_SYNC ||
			    o->kind == STREAM_RENEW || o->kind == MODULE_RENEW || o->kind == EPISODE;
		if (m->threads > 1 && wide && m->features & WITH_cpu)
			return SENSELESS;
	}

	// All conflicting operations are before it.
	if (capture) {
		for (int j = 0; j < i; j++) {
			if (m->capture_of[j] != capture || has(&before_device, device(j)))
				continue;
			struct accesses other = {0};
			accesses_of(m, &m->operation[j], &other);
			for (int a = 0; a < other.count; a++)
				for (int b = 0; b < cells.count; b++)
					if (other.list[a].place == cells.list[b].place &&
					    (other.list[a].write || cells.list[b].write))
						return SENSELESS;
		}
	}
	for (int k = 0; k < cells.count + handles.count; k++) {
		const struct access *a = k < cells.count ? &cells.list[k] : &handles.list[k - cells.count];
		if (k < cells.count && (capture || (o->kind == FREE && m->threads == 1)))
			continue; // memory is freed when all that the context has to do is done
		const set *there = a->host ? &start : &before_device;
		if (m->writer[a->place] >= 0 && !has(there, m->writer[a->place]))
			add(missing, m->writer[a->place]);
		if (a->write) {
			set unordered = lacking(&m->readers[a->place], there);
			join(missing, &unordered);
		}
	}
	// A record must leave what a wait took, which may come after it.
	if (o->kind == RECORD)
		for (int j = 0; j < i; j++) {
			const struct operation *p = &m->operation[j];
			bool waits_for_it = (p->kind == WAIT_EVENT || p->kind == EVENT_SYNC || p->kind == EVENT_QUERY) &&
					    p->device == o->device && p->event == o->event;
			if (!waits_for_it || has(&start, host(j)))
				continue;
			set lost = lacking(&m->taken[j], &before_device);
			if (!empty(&lost))
				add(missing, host(j));
		}
	// A query's answer is worth the cells that it speaks of.
	if (o->reads) {
		int place = o->buffer * CELLS + o->first;
		if (device_buffer(o->buffer) || !m->known[place])
			return SENSELESS;
		set there = start;
		join(&there, &taken);
		if (m->writer[place] >= 0 && !has(&there, m->writer[place]))
			return SENSELESS;
		o->expected[0] = m->value[place];
	}
	if (!empty(missing))
		return RACES;
	if (!capture) {
		struct plan *trial = m->scratch;
		memcpy(trial->value, m->value, sizeof m->value);
		memcpy(trial->known, m->known, sizeof m->known);
		memcpy(trial->graph, m->graph, sizeof m->graph);
		if (!carry_out(trial, o))
			return SENSELESS;
		if (o->kind == CPU || o->kind == READ || o->kind == HOST_FUNCTION)
			for (int c = 0; c < o->count; c++)
				o->expected[c] = m->value[o->buffer * CELLS + o->first + c];
		memcpy(m->value, trial->value, sizeof m->value);
		memcpy(m->known, trial->known, sizeof m->known);
	}

	// It is part of the program.
	o->must = false;
	if ((o->kind == STREAM_QUERY || o->kind == EVENT_QUERY) && m->threads == 1) {
		set open = lacking(&asked, &start);
		o->must = empty(&open);
	}
	if (synchronous(o)) {
		join(&before_host, &before_device), join(&may_host, &may_device);
		add(&before_host, device(i)), add(&may_host, device(i));
	}
	m->before[host(i)] = before_host;
	m->may[host(i)] = may_host;
	if (on_stream(o)) {
		m->before[device(i)] = before_device;
		if (!capture)
			add(&m->before[device(i)], host(i)); // it was called
		m->may[device(i)] = may_device;
	}
	o->captured = capture != 0;
	o->position = (uint8_t)i;
	m->operation[i] = *o;
	m->position[o->id] = (int16_t)i;
	m->capture_of[i] = (int8_t)capture;
	m->generation_of[i] = m->generation[o->device * STREAMS + (o->kind == FORK ? o->stream2 : o->stream)];
	m->event_generation_of[i] = m->event_generation[o->device * EVENTS + o->event];
	m->graph_generation_of[i] = m->graph_generation[o->graph];
	m->taken[i] = taken;
	m->last[t] = host(i);
	m->count++;
	for (int k = 0; k < cells.count + handles.count; k++) {
		const struct access *a = k < cells.count ? &cells.list[k] : &handles.list[k - cells.count];
		if (capture && k < cells.count)
			continue;
		int moment = a->host ? host(i) : device(i);
		if (a->write) {
			m->writer[a->place] = (int16_t)moment;
			memset(&m->readers[a->place], 0, sizeof m->readers[a->place]);
		} else {
			add(&m->readers[a->place], moment);
		}
	}
	if (o->reads)
		add(&m->readers[o->buffer * CELLS + o->first], host(i));
	bool calls = o->kind == HOST_FUNCTION;
	if (o->kind == LAUNCH)
		for (int k = 0; k < m->graph[o->graph].count; k++)
			calls |= m->graph[o->graph].operation[k].kind == HOST_FUNCTION;
	if (calls && !capture)
		add(&m->host_functions, device(i));

	if (capture) {
		int c = t;
		if (o->kind == FORK)
			m->stream_captured[o->device * STREAMS + o->stream2] = (int8_t)capture,
								 m->joined[o->device * STREAMS + o->stream2] = false;
		else if (o->kind == JOIN)
			m->joined[o->device * STREAMS + o->stream2] = true;
		else if (o->stream != m->capture_stream[c] % STREAMS)
			m->joined[stream_index] = false;
		m->captured_operations[c] +=
			o->kind == LAUNCH ? m->graph[o->graph].count : o->kind != FORK && o->kind != JOIN;
	}
	switch (o->kind) {
	case STREAM_RENEW: m->generation[stream_index]++; break;
	case EVENT_RENEW: m->event_generation[o->device * EVENTS + o->event]++; break;
	case FREE:
	case FREE_ASYNC:
		m->buffer_generation[o->buffer]++;
		if (o->kind == FREE) // what comes is other memory
			for (int c = 0; c < CELLS; c++)
				memset(&m->readers[o->buffer * CELLS + c], 0, sizeof(set));
		break;
	case BEGIN:
		m->capturing[t] = ++m->captures;
		m->capture_mode[t] = o->variant % 3;
		m->capture_stream[t] = stream_index;
		m->captured_operations[t] = 0;
		m->stream_captured[stream_index] = (int8_t)m->captures;
		break;
	case BUILD:
	case UPDATE: {
		struct graph g = {.device = o->device,
				  .built = true,
				  .count = o->kind == BUILD ? o->nodes : m->graph[o->graph].count};
		for (int k = 0; k < g.count; k++) {
			g.operation[k] = *o;
			g.operation[k].kind = KERNEL;
			g.operation[k].form = PARAMETERS;
			g.operation[k].value += (uint32_t)k;
		}
		memcpy(g.buffer_generation, m->buffer_generation, sizeof g.buffer_generation);
		m->graph[o->graph] = g;
		m->graph_generation[o->graph] += o->kind == BUILD;
		break;
	}
	case CHANGE: {
		struct operation *node = &m->graph[o->graph].operation[o->nodes];
		*node = *o;
		node->kind = KERNEL;
		node->form = PARAMETERS;
		break;
	}
	case END: {
		struct graph g = {.device = o->device};
		for (int j = 0; j < i; j++)
			if (m->capture_of[j] == m->capturing[t]) {
				const struct operation *p = &m->operation[j];
				if (p->kind == LAUNCH) {
					const struct graph *child = &m->graph[p->graph];
					for (int k = 0; k < child->count && g.count < LAUNCHES; k++)
						g.operation[g.count++] = child->operation[k];
				} else if (p->kind != FORK && p->kind != JOIN && g.count < LAUNCHES) {
					g.operation[g.count++] = *p;
				}
			}
		memcpy(g.buffer_generation, m->capture_generations[t], sizeof g.buffer_generation);
		m->graph[o->graph] = g;
		m->graph_generation[o->graph]++;
		for (int s = 0; s < DEVICES * STREAMS; s++)
			if (m->stream_captured[s] == m->capturing[t])
				m->stream_captured[s] = 0;
		m->capturing[t] = 0;
		break;
	}
	default: break;
	}
	if (o->kind == BEGIN)
		memcpy(m->capture_generations[t], m->buffer_generation, sizeof m->buffer_generation);

	if (waits) {
		w->waiter = i;
		if (w->writer < 0) {
			add(&m->pending, device(i));
			m->open[t]++;
			m->waiting_functions += o->kind == HOST_FUNCTION;
		}
	}
	if (o->kind == WRITE_VALUE || o->kind == RELEASE) {
		w->writer = i;
		if (w->waiter >= 0) {
			int by = o->kind == RELEASE ? host(i) : device(i), waiting = device(w->waiter);
			set all = until(m, by), all_may = m->may[by];
			add(&all_may, by);
			for (int n = 0; n <= device(i); n++)
				if (n != by) {
					if (n == waiting || has(&m->before[n], waiting))
						join(&m->before[n], &all);
					if (n == waiting || has(&m->may[n], waiting))
						join(&m->may[n], &all_may);
				}
			m->pending.bits[waiting / 64] &= ~(1ull << waiting % 64);
			m->open[m->operation[w->waiter].thread]--;
			m->waiting_functions -= m->operation[w->waiter].kind == HOST_FUNCTION;
		}
	}
	return ACCEPTED;
}

void plan_begin(struct plan *m, const struct program *p)
{
	struct plan *scratch = m->scratch;
	memset(m, 0, sizeof *m);
	m->scratch = scratch;
	m->threads = p->threads;
	m->devices = p->devices;
	m->features = p->features;
	memcpy(m->owner, p->owner, sizeof m->owner);
	memcpy(m->value, p->initial, sizeof m->value);
	memset(m->known, 1, sizeof m->known);
	memset(m->writer, -1, sizeof m->writer);
	memset(m->position, -1, sizeof m->position);
	for (int t = 0; t < THREADS; t++)
		m->last[t] = -1;
	for (int w = 0; w < WORDS; w++)
		m->word[w] = (struct word){-1, -1};
}

// Whether the program may end here: nothing waits for an operation to come.
bool plan_whole(const struct plan *m)
{
	for (int t = 0; t < m->threads; t++)
		if (m->capturing[t] || m->open[t])
			return false;
	return empty(&m->pending);
}

int plan_first(const set *s)
{
	for (int i = 0; i < MOMENTS; i++)
		if (has(s, i))
			return i;
	return -1;
}

bool plan_knows(const struct plan *m, int thread, int moment)
{
	return m->last[thread] >= 0 && (m->last[thread] == moment || has(&m->before[m->last[thread]], moment));
}
