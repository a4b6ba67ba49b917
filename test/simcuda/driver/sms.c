// sms.c - the SMs of a context, from its first green context on: which blocks have room together, and which SMs a launch may use. With
// SIMCUDA_SHARED_SMS also the SMs of all clients of an MPS server, from the beginning of each context on.
//
// As on a GPU, a block goes to the SM with the most room. Blocks of more urgent streams go first, then those of earlier launches; a launch
// that has no room holds up later ones for the same SMs. A block runs as long as in a launch that has the machine to itself. With n times
// as many blocks of its launch on its SM as then, it runs n times as long: together they get no more done there. Blocks of other launches
// beside it cost it only room. Kernels whose blocks wait for each other, and holds, take none.
//
// Blocks begin and end by the run clock, in its order, however late the thread looks (place).
//
// Each client (a context) tells the others what its blocks take of each SM, and until when, in words that only it writes: a client waits
// for no lock and for no other's thread. Room whose time is over is free, however late its owner looks, and so is that of a client that has
// died. A block has the room that the others leave as its thread looks. Of an SM where n clients have blocks each gets an nth: so a block
// takes n times as long, by those that are there when it begins. A later one does not slow it. Between clients no block is more urgent than
// another: the client that looks first has the room.
#include "executor.h"

#include <stdlib.h>
#include <string.h>

#define SMS 132
#define WORD 64
#define LOOK_NS 5000000 // a launch that waits for the room of others asks so often whether they are dead
#define AGAIN_NS 20000  // a client asks again after this: another one wants the same room all the time
_Static_assert(ENGINE_SMS == SMS, "a word for each SM");
_Static_assert(sizeof(struct sm_set) * 8 >= SMS, "a bit for each SM");

struct wave { // blocks of a launch that began together
	struct wave *next;
	struct op *op;
	uint64_t from, to, end_run;
	uint8_t on[SMS]; // how many on each SM
};
struct need { uint64_t threads, registers, shared; }; // of a block

struct sms {
	struct sm { uint64_t blocks, threads, registers, shared; } taken[SMS], others[SMS];
	uint64_t clients[SMS];       // others that have blocks there
	uint64_t others_end;         // when blocks of others end next, NEVER: there are none
	struct residence *residence; // where others see what is taken; NULL: they do not ask, nor does the context
	int other[ENGINE_TSGS], number;
	struct wave *waves;
	struct op *launches; // that have begun, by urgency and number
	uint64_t run;        // blocks are placed up to here
};

// ---- what clients tell each other

enum { BLOCKS_BITS = 8, THREADS_BITS = 16, REGISTERS_BITS = 20, SHARED_BITS = 20 };

static uint64_t packed(const struct sm *t)
{
	return ((t->shared << REGISTERS_BITS | t->registers) << THREADS_BITS | t->threads) << BLOCKS_BITS | t->blocks;
}

static uint64_t unpack(uint64_t *word, int bits)
{
	uint64_t is = *word & ((1ull << bits) - 1);
	*word >>= bits;
	return is;
}

// Publishes what this client takes of the SM now. The blocks that run there end at that time, or earlier.
static void tell(struct sms *m, int sm, uint64_t until)
{
	struct residence *r = m->residence ? &m->residence[sm] : NULL;
	if (r && until > atomic_load(&r->until))
		atomic_store(&r->until, until); // first: who sees the blocks sees their end, or a later one
	if (r)
		atomic_store(&r->taken, packed(&m->taken[sm]));
}

static void ask_of(const struct pass *p, struct sms *m, int sm)
{
	m->others[sm] = (struct sm){0};
	m->clients[sm] = 0;
	for (int i = 0; i < m->number; i++) {
		struct residence *r = &engine_residence(p->c->device, m->other[i])[sm];
		uint64_t taken = atomic_load(&r->taken), until = atomic_load(&r->until);
		if (!taken || until <= p->engine.at)
			continue;
		m->clients[sm]++;
		m->others_end = until < m->others_end ? until : m->others_end;
		m->others[sm].blocks += unpack(&taken, BLOCKS_BITS);
		m->others[sm].threads += unpack(&taken, THREADS_BITS);
		m->others[sm].registers += unpack(&taken, REGISTERS_BITS);
		m->others[sm].shared += unpack(&taken, SHARED_BITS);
	}
}

static void ask(const struct pass *p, struct sms *m)
{
	m->others_end = NEVER;
	m->number = 0;
	for (int i = 0; m->residence && i < ENGINE_TSGS; i++)
		if (i != p->c->tsg && p->engine.tsg[i].used)
			m->other[m->number++] = i;
	for (int sm = 0; m->residence && sm < SMS; sm++)
		ask_of(p, m, sm);
}

static void forget(struct sms *m)
{
	for (struct wave *w; (w = m->waves); free(w))
		m->waves = w->next;
	*m = (struct sms){.run = m->run, .residence = m->residence};
	for (int sm = 0; m->residence && sm < SMS; sm++) {
		atomic_store(&m->residence[sm].taken, 0);
		atomic_store(&m->residence[sm].until, 0);
	}
}

bool sms_make(struct CUctx_st *c)
{
	if (!c->sms && (c->sms = calloc(1, sizeof *c->sms)) && sim_shared_sms()) {
		c->sms->residence = engine_residence(c->device, c->tsg);
		forget(c->sms); // what the last one left who had the TSG, and died
	}
	return c->sms != NULL;
}

void sms_free(struct CUctx_st *c)
{
	if (c->sms)
		forget(c->sms);
	free(c->sms);
	c->sms = NULL;
}

// ---- sets of SMs

static bool is_all(const struct sm_set *s) { return !(s->bit[0] | s->bit[1] | s->bit[2]); }

static bool has(const struct sm_set *s, unsigned sm) { return is_all(s) || s->bit[sm / WORD] >> sm % WORD & 1; }

unsigned sms_in(const struct sm_set *s)
{
	unsigned n = 0;
	for (unsigned sm = 0; sm < SMS; sm++)
		n += has(s, sm);
	return n;
}

struct sm_set sms_from(const struct sm_set *s, unsigned first, unsigned count)
{
	struct sm_set part = {{0}};
	for (unsigned sm = 0, seen = 0; sm < SMS; sm++)
		if (has(s, sm) && seen++ >= first && seen <= first + count)
			part.bit[sm / WORD] |= 1ull << sm % WORD;
	return part;
}

static struct need need_of(const struct work *w)
{
	uint64_t threads = ((uint64_t)w->block[0] * w->block[1] * w->block[2] + 31) / 32 * 32;
	return (struct need){threads, threads * (uint64_t)w->kernel->registers,
			     (uint64_t)(w->kernel->shared_bytes + machine.shared_reserved) + w->shared_bytes};
}

static uint64_t per_sm(const struct work *w)
{
	int fit = kernel_blocks_per_sm(w->kernel, (uint64_t)w->block[0] * w->block[1] * w->block[2], w->shared_bytes);
	return fit > 0 ? (uint64_t)fit : 1;
}

uint64_t blocks_at_once(const struct work *w) { return sms_in(&w->sms) * per_sm(w); }

// Whether an SM has room for a block. An empty one takes any.
static bool fits(const struct sms *m, int sm, const struct need *n)
{
	const struct sm *t = &m->taken[sm], *o = &m->others[sm];
	return !(t->blocks + o->blocks) ||
	       (t->blocks + o->blocks < (uint64_t)machine.blocks_per_sm &&
		t->threads + o->threads + n->threads <= (uint64_t)machine.threads_per_sm &&
		t->registers + o->registers + n->registers <= (uint64_t)machine.registers_per_sm &&
		t->shared + o->shared + n->shared <= (uint64_t)machine.shared_per_sm);
}

static uint64_t threads_on(const struct sms *m, int sm) { return m->taken[sm].threads + m->others[sm].threads; }

// The SM with the most room, of those that have enough for a block; -1: none.
static int roomiest(const struct sms *m, const struct sm_set *set, const struct need *n)
{
	int best = -1;
	for (int sm = 0; sm < SMS; sm++)
		if (has(set, (unsigned)sm) && fits(m, sm, n) && (best < 0 || threads_on(m, sm) < threads_on(m, best)))
			best = sm;
	return best;
}

static void change(struct sm *t, const struct need *n, int64_t blocks)
{
	t->blocks += (uint64_t)blocks;
	t->threads += (uint64_t)blocks * n->threads;
	t->registers += (uint64_t)blocks * n->registers;
	t->shared += (uint64_t)blocks * n->shared;
}

// ---- launches

void begin_placed(struct pass *p, struct op *o)
{
	const struct work *w = &o->work;
	uint64_t blocks = blocks_of(w), resident = (uint64_t)machine.sms * per_sm(w);
	struct op **at = &p->c->sms->launches;
	o->placed = true;
	o->wave_ns = w->kernel->duration_ns(w->argument, blocks) / ((blocks + resident - 1) / resident);
	o->next_begin_run = o->start_run + machine.kernel_overhead_ns;
	while (*at && ((*at)->priority < o->priority || ((*at)->priority == o->priority && (*at)->number < o->number)))
		at = &(*at)->placed_next;
	o->placed_next = *at;
	*at = o;
}

static bool is_over(const struct op *o) { return o->begun && o->next_block == blocks_of(&o->work) && !o->running; }

// How long the blocks of a wave take, the last of its launch, where that has so many on their SMs, beside so many clients.
static uint64_t stretched(const struct sms *m, const struct wave *latest)
{
	const struct op *o = latest->op;
	uint64_t blocks = blocks_of(&o->work), alone = (blocks + SMS - 1) / SMS, on[SMS] = {0}, most = 0;
	alone = alone < per_sm(&o->work) ? alone : per_sm(&o->work);
	for (const struct wave *w = m->waves; w; w = w->next)
		for (int sm = 0; w->op == o && sm < SMS; sm++)
			on[sm] += w->on[sm];
	for (int sm = 0; sm < SMS; sm++) {
		uint64_t load = latest->on[sm] ? (on[sm] > alone ? on[sm] : alone) * (1 + m->clients[sm]) : 0;
		most = load > most ? load : most;
	}
	return o->wave_ns * most / alone;
}

// By CLOCK_MONOTONIC.
static uint64_t real_time(const struct pass *p, uint64_t run) { return p->engine.at + run - p->run; }

// Takes room for a block that runs until then at least. False: another client's room on the SM has changed since the choice.
static bool take(const struct pass *p, struct sms *m, int sm, const struct need *n, uint64_t until)
{
	change(&m->taken[sm], n, 1);
	if (!m->residence)
		return true;
	// The client publishes first and asks then. So of two clients that want the same room at once, one at least sees the other.
	struct sm before = m->others[sm];
	tell(m, sm, until);
	ask_of(p, m, sm);
	if (memcmp(&before, &m->others[sm], sizeof before) == 0)
		return true;
	change(&m->taken[sm], n, -1);
	tell(m, sm, 0);
	return false;
}

// When a launch asks again that has no room, or has not come to take it.
static uint64_t again(const struct pass *p, const struct sms *m, bool room)
{
	uint64_t wait = m->others_end - p->engine.at, next = NEVER;
	if (room)
		wait = AGAIN_NS * (1 + (uint64_t)p->c->tsg); // not when the other one does
	if (wait > LOOK_NS)
		wait = LOOK_NS;
	for (const struct wave *w = m->waves; w; w = w->next)
		next = w->end_run < next ? w->end_run : next;
	return p->run + wait < next ? p->run + wait : next;
}

// Hands out blocks of a launch while there is room. False: its record is not one.
static bool hand_out(const struct pass *p, struct sms *m, struct op *o)
{
	const struct need need = need_of(&o->work);
	uint64_t blocks = blocks_of(&o->work);
	int missed = 0; // room that was seen, and another client took
	if (o->work.hidden && !guard_valid(&o->work))
		return false;
	// A block that exits at once needs room, too.
	if (o->work.hidden && !o->next_block && roomiest(m, &o->work.sms, &need) >= 0)
		o->next_block = guard_begins(&o->work);
	o->begun = true;
	struct wave *w = calloc(1, sizeof *w);
	if (!w)
		abort();
	w->op = o;
	w->from = o->next_block;
	for (int sm; missed < SMS && o->next_block < blocks && (sm = roomiest(m, &o->work.sms, &need)) >= 0;) {
		if (!take(p, m, sm, &need, real_time(p, m->run + o->wave_ns))) {
			missed++;
			continue;
		}
		if (o->work.hidden && guard_exits(&o->work, o->next_block)) {
			change(&m->taken[sm], &need, -1);
			tell(m, sm, 0);
			w->to = o->next_block;
			o->next_block = blocks; // the record is frozen: all later blocks exit too
			break;
		}
		w->on[sm]++;
		w->to = ++o->next_block;
		o->running++;
	}
	if (w->to > w->from) {
		w->next = m->waves;
		m->waves = w;
		w->end_run = m->run + stretched(m, w);
		for (int sm = 0; sm < SMS; sm++)
			if (w->on[sm])
				tell(m, sm, real_time(p, w->end_run));
	} else {
		free(w);
	}
	if (m->residence && o->next_block < blocks)
		o->next_begin_run = again(p, m, missed == SMS);
	return true;
}

// Ends the waves that are over by now. False: what one reaches is not there.
static bool end_waves(struct sms *m)
{
	bool valid = true;
	for (struct wave **at = &m->waves; *at;) {
		struct wave *w = *at;
		if (w->end_run > m->run) {
			at = &w->next;
			continue;
		}
		const struct need need = need_of(&w->op->work);
		for (int sm = 0; sm < SMS; sm++)
			if (w->on[sm]) {
				change(&m->taken[sm], &need, -(int64_t)w->on[sm]);
				tell(m, sm, 0);
			}
		w->op->running -= w->to - w->from;
		valid &= !w->op->work.hidden || effect(&w->op->work, w->from, w->to);
		*at = w->next;
		free(w);
	}
	return valid;
}

static bool held_up(const struct sms *m, const struct op *o)
{
	for (const struct op *b = m->launches; b != o; b = b->placed_next)
		if (b->begun && b->next_block < blocks_of(&b->work) &&
		    memcmp(&b->work.sms, &o->work.sms, sizeof o->work.sms) == 0)
			return true;
	return false;
}

// Lets blocks begin and end up to now, or until a launch is over. False: an illegal address.
static bool carry_on(struct pass *p, struct sms *m)
{
	for (;;) {
		if (!end_waves(m))
			return false;
		uint64_t next = NEVER;
		bool over = false;
		for (struct op *o = m->launches; o; o = o->placed_next) {
			if (o->next_begin_run <= m->run && (!o->begun || o->next_block < blocks_of(&o->work)) &&
			    !held_up(m, o) && !hand_out(p, m, o))
				return false;
			if (o->next_begin_run > m->run && o->next_begin_run < next)
				next = o->next_begin_run;
			over |= is_over(o);
		}
		for (const struct wave *w = m->waves; w; w = w->next)
			next = w->end_run < next ? w->end_run : next;
		if (!over && next != NEVER && next > p->run && p->running)
			due(p, engine_after(&p->engine, p->c->tsg, next - p->run));
		if (over || next > p->run)
			break;
		m->run = next;
	}
	return true;
}

// The time when a launch ends, judged by the blocks that run now.
static uint64_t expected(const struct sms *m, const struct op *o)
{
	uint64_t left = blocks_of(&o->work) - o->next_block, first = NEVER, end = m->run;
	for (const struct wave *w = m->waves; w; w = w->next) {
		if (w->op == o && w->end_run > end)
			end = w->end_run;
		first = w->end_run < first ? w->end_run : first;
	}
	if (left && end == m->run && first != NEVER)
		end = first;
	end = end > o->next_begin_run ? end : o->next_begin_run;
	return end + (left + blocks_at_once(&o->work) - 1) / blocks_at_once(&o->work) * o->wave_ns;
}

void place(struct pass *p)
{
	struct sms *m = p->c->sms;
	bool over = false;
	if (!m)
		return;
	ask(p, m);
	if (!p->c->error && !carry_on(p, m))
		fault(p->c);
	if (p->c->error) { // nothing runs after that
		forget(m);
		return;
	}
	for (struct op *o = m->launches; o; o = o->placed_next) {
		o->end_run = expected(m, o);
		over |= is_over(o);
	}
	if (!over && m->run < p->run) // else what comes behind it in its stream may begin at that time
		m->run = p->run;
}

static _Atomic uint64_t slow_launches;

// How many launches of this process have taken longer than alone, since they waited for room or had a part of an SM.
API uint64_t simcuda_slow_launches(void) { return slow_launches; }

bool step_placed(struct pass *p, struct op *o)
{
	struct sms *m = p->c->sms;
	if (!is_over(o))
		return false;
	o->end_run = m->run;
	uint64_t alone = o->work.kernel->duration_ns(o->work.argument, blocks_of(&o->work)) + machine.kernel_overhead_ns;
	slow_launches += o->end_run - o->start_run > alone + alone / 64;
	for (struct op **at = &m->launches; *at; at = &(*at)->placed_next)
		if (*at == o) {
			*at = o->placed_next;
			break;
		}
	return true;
}
