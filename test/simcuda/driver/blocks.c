// blocks.c - launches whose blocks count one by one: those with a record of kernels/guard/guard.h, which a stop cuts,
// and those whose blocks wait for each other.
#include "../../../kernels/guard/guard.h"
#include "executor.h"

#include <stdlib.h>

static bool carry_out(const struct work *w, uint64_t from, uint64_t to)
{
	const struct kernel *k = w->kernel;
	if (k->block) {
		for (uint64_t n = from; n < to; n++)
			if (!k->block(w->argument, n))
				return false;
		return true;
	}
	// The effect comes with the last block.
	return from == to || to != blocks_of(w) || !k->finish || k->finish(w->argument);
}

// The effect of the blocks from .. to - 1, which have ended.
bool effect(const struct work *w, uint64_t from, uint64_t to)
{
	device_acts();
	bool valid = carry_out(w, from, to);
	device_acted();
	return valid;
}

// ---- launches with a record

typedef _Atomic unsigned int word;

static struct gpreempt_record *record_of(uint64_t hidden)
{
	return (struct gpreempt_record *)(hidden & ~(uint64_t)GPREEMPT_SHIFT);
}

static bool record_valid(uint64_t hidden)
{
	uint64_t record = (uint64_t)record_of(hidden), arena = record & ~(GPREEMPT_ARENA_BYTES - 1ull);
	return record != arena && record % sizeof(struct gpreempt_record) == 0 && memory_is_device(arena) &&
	       address_valid(arena, record + sizeof(struct gpreempt_record) - arena);
}

// The guard's number of a block, which is the number of its window. Blocks of a cluster have the same.
static uint64_t number_of(const struct work *w, uint64_t block)
{
	return block / w->cluster >> (w->hidden & GPREEMPT_SHIFT);
}

static bool stopped(const struct gpreempt_record *record)
{
	return atomic_load((_Atomic uint32_t *)((uint64_t)record & ~(GPREEMPT_ARENA_BYTES - 1ull))) != 0;
}

// Count and state of a record, as one word.
static _Atomic uint64_t *both(struct gpreempt_record *record) { return (_Atomic uint64_t *)record; }

static uint32_t state_of(uint64_t word) { return (uint32_t)(word >> 32); }

static uint64_t counting(uint64_t number) { return (uint64_t)GPREEMPT_OPEN << 32 | (number + 1); }

// Counts a window, if the state is open. Returns the word's former value.
static uint64_t count(struct gpreempt_record *record, uint64_t number)
{
	uint64_t before = atomic_load(both(record)), counted = counting(number);
	while ((int64_t)before < (int64_t)counted && !atomic_compare_exchange_weak(both(record), &before, counted))
		;
	return before;
}

// Counts a window, and opens a record that is not open yet. Returns the word's former value.
static uint64_t open_and_count(struct gpreempt_record *record, uint64_t number)
{
	uint64_t before = atomic_load(both(record)), counted = counting(number);
	while (before < counted && !atomic_compare_exchange_weak(both(record), &before, counted))
		;
	return before;
}

// Returns the word's former value, but for the state.
static uint64_t freeze(struct gpreempt_record *record)
{
	uint64_t frozen = (uint64_t)GPREEMPT_FROZEN << 32;
	return (uint32_t)atomic_fetch_or(both(record), frozen) | frozen;
}

// The guard's code in the first thread of a block. True: the block is to exit.
static bool guard(struct gpreempt_record *record, uint64_t number)
{
	enum { BLOCKS_A_LOOK = 16, FIRST_BLOCKS = 1024 }; // kernels/guard/guard.cu
	bool looks = number % BLOCKS_A_LOOK == 0 || number < FIRST_BLOCKS, stop = looks && stopped(record);
	uint64_t before = count(record, number);
	if (number < atomic_load((word *)&record->done))
		return true;
	if (state_of(before) == GPREEMPT_OPEN) {
		if (stop)
			freeze(record);
		return false;
	}
	if (state_of(before) != GPREEMPT_FROZEN) {
		if (!looks)
			stop = stopped(record);
		before = stop ? freeze(record) : open_and_count(record, number);
	}
	return state_of(before) == GPREEMPT_FROZEN && number >= (uint32_t)before;
}

static bool must_exit(struct gpreempt_record *record, uint64_t number)
{
	device_acts();
	bool exits = guard(record, number);
	device_acted();
	return exits;
}

bool guard_valid(const struct work *w) { return record_valid(w->hidden); }

uint64_t guard_begins(const struct work *w)
{
	uint64_t blocks = blocks_of(w);
	device_acts();
	uint64_t done = atomic_load((word *)&record_of(w->hidden)->done);
	device_acted();
	done = (done << (w->hidden & GPREEMPT_SHIFT)) * w->cluster;
	return done < blocks ? done : blocks;
}

bool guard_exits(const struct work *w, uint64_t block) { return must_exit(record_of(w->hidden), number_of(w, block)); }

// Hands out blocks until the machine is full. Blocks that exit at once take no time.
static void begin_wave(struct op *o)
{
	const struct work *w = &o->work;
	uint64_t blocks = blocks_of(w), done = guard_begins(w);
	uint64_t resident = blocks_at_once(w);
	o->wave_ns = w->kernel->duration_ns(w->argument, blocks) / ((blocks + resident - 1) / resident);
	if (o->next_block < done)
		o->next_block = done;
	o->wave_from = o->wave_to = o->next_block;
	while (o->next_block < blocks && o->wave_to - o->wave_from < resident) {
		if (guard_exits(w, o->next_block)) {
			o->next_block = blocks; // the record is frozen: all later blocks exit too
		} else {
			o->wave_to = ++o->next_block;
		}
	}
	if (o->wave_to > o->wave_from)
		o->wave_end += o->wave_ns;
	o->end_run = o->wave_end + (blocks - o->next_block + resident - 1) / resident * o->wave_ns;
}

bool step_guarded(struct pass *p, struct op *o)
{
	if (!record_valid(o->work.hidden)) { // asked each time: the program may have unmapped it
		fault(p->c);
		return true;
	}
	if (!o->wave_end)
		o->wave_end = o->start_run + machine.kernel_overhead_ns;
	while (p->run >= o->wave_end) {
		if (!effect(&o->work, o->wave_from, o->wave_to)) {
			fault(p->c);
			return true;
		}
		o->wave_from = o->wave_to;
		if (o->next_block == blocks_of(&o->work)) {
			o->end_run = o->wave_end;
			return true;
		}
		begin_wave(o);
	}
	if (p->running)
		due(p, engine_after(&p->engine, p->c->tsg, o->wave_end - p->run));
	return false;
}

// ---- launches whose blocks wait for each other

static enum progress proceed(const struct work *w, struct place *b)
{
	device_acts();
	enum progress progress = w->kernel->proceed(w->argument, blocks_of(w), b);
	device_acted();
	return progress;
}

// Hands out blocks, one after the other, while there is room. Blocks that exit at once because of a stop take neither time nor
// room.
static void begin_blocks(struct pass *p, struct op *o)
{
	const struct work *w = &o->work;
	uint64_t blocks = blocks_of(w), resident = blocks_at_once(w), apart = sim_block_ns();
	for (; o->next_block < blocks && o->places < resident; o->next_block++) {
		if (p->run < o->next_begin_run) {
			due(p, engine_after(&p->engine, p->c->tsg, o->next_begin_run - p->run));
			return;
		}
		if (w->hidden && guard_exits(w, o->next_block))
			continue;
		o->next_begin_run += apart;
		o->place[o->places++] = (struct place){.number = o->next_block, .until = p->run + o->wave_ns};
	}
}

static void begin_waiting(struct op *o)
{
	const struct work *w = &o->work;
	uint64_t blocks = blocks_of(w), resident = blocks_at_once(w);
	o->wave_ns = w->kernel->duration_ns(w->argument, blocks) / ((blocks + resident - 1) / resident);
	o->next_begin_run = o->start_run + machine.kernel_overhead_ns;
	if (!(o->place = calloc(resident, sizeof *o->place)))
		abort();
}

// Every block keeps its place while it waits. Later blocks begin only where a place is free.
bool step_waiting(struct pass *p, struct op *o)
{
	if (!p->running)
		return false;
	if (o->work.hidden && !record_valid(o->work.hidden)) {
		fault(p->c);
		return true;
	}
	if (!o->place)
		begin_waiting(o);
	bool any = false;
	for (bool moved = true; moved;) {
		begin_blocks(p, o);
		moved = false;
		for (uint64_t i = 0; i < o->places;) {
			struct place *b = &o->place[i];
			enum progress progress = p->run < b->until ? WAITS : proceed(&o->work, b);
			if (progress == FAULTS) {
				fault(p->c);
				return true;
			}
			if (progress == ENDS)
				*b = o->place[--o->places];
			else
				i++;
			moved |= progress != WAITS;
		}
		any |= moved;
	}
	if (any || !o->started_ns)
		o->started_ns = now_ns();
	o->end_run = p->run;
	bool waits = false;
	for (uint64_t i = 0; i < o->places; i++)
		if (p->run < o->place[i].until)
			due(p, engine_after(&p->engine, p->c->tsg, o->place[i].until - p->run));
		else
			waits = true;
	if (waits)
		due_for_word(p, o->started_ns);
	return o->places == 0 && o->next_block == blocks_of(&o->work);
}
