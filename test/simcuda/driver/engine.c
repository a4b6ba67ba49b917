// engine.c - the compute engine of each device, shared by the processes that use it.
//
// The state is one small struct. A process copies it, brings the copy up to date, and writes it to a buffer of its own. It publishes that
// by a compare-and-swap of `head`. So a process that is killed or stopped, at whatever instruction, keeps no other waiting, and any process
// can bring the state up to date.
//
// Under MPS nothing is switched: if n processes have something to run, the run clock of each goes at an nth of real time. Where they share
// the SMs (sms.c), it goes as real time does.
//
// A living process holds a POSIX record lock on the byte of its index.
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEVICES 8
#define NEVER UINT64_MAX

static struct device {
	struct shared *shared;
	int fd, process;
	pid_t pid;
} devices[DEVICES];
static pthread_mutex_t update_lock = PTHREAD_MUTEX_INITIALIZER; // our own two buffers

static bool record_lock(int fd, int type, off_t byte)
{
	struct flock l = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	return fcntl(fd, F_SETLK, &l) == 0;
}

static bool process_alive(const struct device *d, uint32_t process)
{
	if ((int)process == d->process)
		return true;
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = process, .l_len = 1};
	return fcntl(d->fd, F_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

int engine_attach(int index)
{
	struct device *d = &devices[index];
	if (d->shared)
		return 0;
	char path[600];
	sim_folder(path, sizeof path);
	mkdir(path, 0700);
	sim_state(path, sizeof path, sim_part(index).gpu, sim_part(index).slice);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	// A file of zeros is a device whose state has not been published yet (head == 0).
	if (ftruncate(fd, sizeof(struct shared)) != 0) {
		close(fd);
		return -1;
	}
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int process = 0;
	while (s != MAP_FAILED && process < ENGINE_PROCESSES && !record_lock(fd, F_WRLCK, process))
		process++;
	if (s == MAP_FAILED || process == ENGINE_PROCESSES) {
		if (s != MAP_FAILED)
			munmap(s, sizeof *s);
		close(fd);
		return -1;
	}
	*d = (struct device){.shared = s, .fd = fd, .process = process, .pid = getpid()};
	engine_reap(index);
	return 0;
}

static bool unfinished(const struct tsg *t, uint64_t at)
{
	return t->used && (t->work_ns > t->ran_ns || t->hold_until > at);
}

static bool runnable(const struct tsg *t, uint64_t at) { return unfinished(t, at) && !t->off; }

static int pick(const struct engine *e, uint64_t at)
{
	for (int i = 1; i <= ENGINE_TSGS; i++) {
		int t = (e->current + i + ENGINE_TSGS) % ENGINE_TSGS;
		if (t != e->current && runnable(&e->tsg[t], at))
			return t;
	}
	return -1;
}

// Under MPS: by how many times the run clocks are slower than real time.
static unsigned sharers(const struct engine *e)
{
	unsigned n = 0;
	for (int i = 0; i < ENGINE_TSGS; i++)
		n += runnable(&e->tsg[i], e->at);
	return n;
}

static uint64_t next_shared(const struct engine *e)
{
	uint64_t next = NEVER, n = sharers(e);
	for (int i = 0; i < ENGINE_TSGS; i++) {
		const struct tsg *t = &e->tsg[i];
		if (!runnable(t, e->at))
			continue;
		uint64_t end = t->work_ns > t->ran_ns ? e->at + (t->work_ns - t->ran_ns) * n : t->hold_until;
		next = end < next ? end : next;
	}
	return next;
}

static void advance_shared(struct engine *e, uint64_t now)
{
	while (e->at < now) {
		uint64_t n = sharers(e), next = next_shared(e), to = next < now ? next : now;
		struct engine before = *e;
		for (int i = 0; i < ENGINE_TSGS; i++)
			if (runnable(&before.tsg[i], before.at))
				e->tsg[i].ran_ns += (to - e->at) / n;
		e->at = to;
	}
}

bool engine_turned(const struct engine *e, int tsg)
{
	return !sim_mps() && e->turned && e->current == tsg && e->next < 0;
}

uint64_t engine_after(const struct engine *e, int tsg, uint64_t run_ns)
{
	if (!sim_mps())
		return e->at + run_ns;
	return e->at + run_ns * (sharers(e) + !runnable(&e->tsg[tsg], e->at));
}

bool engine_running(const struct engine *e, int tsg)
{
	if (sim_mps())
		return e->tsg[tsg].used && !e->tsg[tsg].off;
	return e->current == tsg && e->next < 0 && e->tsg[tsg].used && !e->tsg[tsg].off;
}

// When the loaded TSG, if it stays loaded, has reached run_ns of its run clock; not before until.
static uint64_t both_reached(const struct engine *e, uint64_t run_ns, uint64_t until)
{
	const struct tsg *t = &e->tsg[e->current];
	uint64_t end = run_ns > t->ran_ns ? e->at + (run_ns - t->ran_ns) : e->at;
	return end > until ? end : until;
}

static uint64_t work_end(const struct engine *e)
{ // when the loaded TSG, if it stays loaded, has nothing more to run
	const struct tsg *t = &e->tsg[e->current];
	if (!runnable(t, e->at))
		return e->at;
	return e->turned ? both_reached(e, t->begun_ns, t->begun_until) : both_reached(e, t->work_ns, t->hold_until);
}

// When the host engine turns to another TSG because it finds nothing to fetch in any channel of the loaded one. Kernels that were
// fetched run on; later submissions are fetched when the TSG is loaded again.
static uint64_t turn_end(const struct engine *e)
{
	const struct tsg *t = &e->tsg[e->current];
	if (e->turned)
		return NEVER;
	if (!e->dry)
		return both_reached(e, t->methods_ns, t->methods_until);
	if (!e->contended)
		return NEVER;
	return (e->dry > e->contended ? e->dry : e->contended) + sim_look_ns();
}

static bool has_methods(const struct tsg *t, uint64_t at) { return t->methods_ns > t->ran_ns || t->methods_until > at; }

static uint64_t slice_end(const struct engine *e)
{
	if (!e->contended)
		return NEVER;
	const struct tsg *t = &e->tsg[e->current];
	uint64_t from = e->contended > e->granted ? e->contended : e->granted;
	uint64_t end = t->slice_ns < machine.load_ns ? from : from + t->slice_ns;
	return end > e->at ? end : e->at;
}

uint64_t engine_next(const struct engine *e)
{
	if (sim_mps())
		return next_shared(e);
	if (e->next >= 0)
		return e->switch_end;
	if (e->current < 0 || !runnable(&e->tsg[e->current], e->at))
		return NEVER;
	uint64_t work = work_end(e), slice = slice_end(e), turn = turn_end(e);
	uint64_t next = work < slice ? work : slice;
	return next < turn ? next : turn;
}

static void begin_switch(struct engine *e, int to, bool busy)
{
	e->next = to;
	e->switch_end = e->at + (busy ? sim_switch_ns() : machine.switch_idle_ns);
	e->contended = e->dry = e->turned = 0;
	e->switches++;
}

// Moves the state to now, one transition at a time.
static void advance(struct engine *e, uint64_t now)
{
	if (sim_mps()) {
		advance_shared(e, now);
		return;
	}
	while (e->at <= now) {
		if (e->next >= 0) {
			if (e->switch_end > now)
				break;
			if (e->switch_end > e->at)
				e->at = e->switch_end;
			e->current = e->next;
			e->next = -1;
			e->granted = e->at;
			e->contended = 0;
		}
		int other = pick(e, e->at);
		if (e->current < 0 || !runnable(&e->tsg[e->current], e->at)) {
			if (other < 0) { // nobody has methods: the engine keeps what is loaded, and has nothing to turn to
				e->turned = 0;
				break;
			}
			begin_switch(e, other, e->current >= 0 && unfinished(&e->tsg[e->current], e->at));
			continue;
		}
		if (other < 0)
			e->contended = e->turned = 0;
		else if (!e->contended)
			e->contended = e->at;
		if (e->turned && work_end(e) <= e->at) {
			begin_switch(e, other, false);
			continue;
		}
		if (has_methods(&e->tsg[e->current], e->at))
			e->dry = 0;
		else if (!e->dry)
			e->dry = e->at;
		uint64_t until = engine_next(e);
		bool expired = other >= 0 && slice_end(e) <= until && slice_end(e) <= now;
		bool turns = e->dry && turn_end(e) <= until && turn_end(e) <= now;
		uint64_t to = until < now ? until : now;
		e->tsg[e->current].ran_ns += to - e->at;
		e->at = to;
		if (until > now)
			break;
		if (expired && runnable(&e->tsg[e->current], e->at))
			begin_switch(e, other, true);
		else if (turns)
			e->turned = e->at;
	}
	if (e->at < now)
		e->at = now;
}

void engine_update(int index, void (*change)(struct engine *, void *), void *argument, struct engine *result)
{
	struct device *d = &devices[index];
	struct shared *s = d->shared;
	pthread_mutex_lock(&update_lock);
	struct engine e;
	for (;;) {
		uint64_t head = atomic_load(&s->head);
		unsigned buffer = (unsigned)(head & 0xffff) % (2 * ENGINE_PROCESSES);
		memcpy(&e, &s->buffer[buffer], sizeof e);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(&s->head) != head)
			continue;
		uint64_t now = now_ns();
		if (head == 0) { // nobody has published a state yet
			memset(&e, 0, sizeof e);
			e.current = e.next = -1;
			e.at = now;
		}
		int32_t current = e.current, next = e.next;
		uint64_t contended = e.contended;
		unsigned sharing = sharers(&e);
		for (int i = 0; i < ENGINE_TSGS; i++) // the turn must not go to a dead process
			if (i != e.current && runnable(&e.tsg[i], e.at) && !process_alive(d, e.tsg[i].process))
				e.tsg[i].used = 0;
		advance(&e, now);
		uint64_t before = engine_next(&e);
		if (change) {
			change(&e, argument);
			advance(&e, e.at);
		}
		bool sooner = engine_next(&e) < before; // than those who sleep until then know
		unsigned mine = 2 * (unsigned)d->process;
		if (mine == buffer)
			mine++;
		memcpy(&s->buffer[mine], &e, sizeof e);
		uint64_t published = ((head >> 16) + 1) << 16 | mine;
		if (!atomic_compare_exchange_strong(&s->head, &head, published))
			continue;
		// The process that has the engine and those that wait for it must look again.
		if (sooner || current != e.current || next != e.next || (contended == 0) != (e.contended == 0) ||
		    (sim_mps() && sharing != sharers(&e)))
			for (int i = 0; i < ENGINE_TSGS; i++)
				if (e.tsg[i].used && (sim_mps() || (int)e.tsg[i].process != d->process) &&
				    (i == e.current || runnable(&e.tsg[i], e.at)))
					engine_ring(&s->bell[i]);
		break;
	}
	pthread_mutex_unlock(&update_lock);
	if (result)
		*result = e;
}

struct addition {
	uint32_t process;
	uint64_t slice_ns;
	int tsg;
};

static void add(struct engine *e, void *argument)
{
	struct addition *a = argument;
	a->tsg = -1;
	for (int i = 0; i < ENGINE_TSGS && a->tsg < 0; i++)
		if (!e->tsg[i].used && i != e->next) {
			e->tsg[i] = (struct tsg){.used = 1, .process = a->process, .slice_ns = a->slice_ns};
			if (e->current == i)
				e->current = -1;
			a->tsg = i;
		}
}

int engine_add(int index, uint64_t slice_ns)
{
	engine_reap(index);
	struct addition a = {(uint32_t)devices[index].process, slice_ns, -1};
	engine_update(index, add, &a, NULL);
	return a.tsg;
}

static void take_off(struct engine *e, void *argument) { e->tsg[*(int *)argument].used = 0; }

void engine_remove(int index, int tsg) { engine_update(index, take_off, &tsg, NULL); }

static void reap(struct engine *e, void *argument)
{
	const struct device *d = argument;
	for (int i = 0; i < ENGINE_TSGS; i++)
		if (e->tsg[i].used && !process_alive(d, e->tsg[i].process))
			e->tsg[i].used = 0;
	for (uint32_t i = 0; i < ENGINE_PROCESSES; i++)
		if (e->memory[i] && !process_alive(d, i))
			e->memory[i] = 0;
}

static void take_all_off(struct engine *e, void *argument)
{
	const struct device *d = argument;
	for (int i = 0; i < ENGINE_TSGS; i++)
		if (e->tsg[i].used && (int)e->tsg[i].process == d->process)
			e->tsg[i].used = 0;
	e->memory[d->process] = e->copying[0][d->process] = e->copying[1][d->process] = 0;
}

void engine_reap(int index)
{
	struct device *d = &devices[index];
	static bool taken[DEVICES];
	if (!taken[index]) { // remove what a dead process with our index left
		engine_update(index, take_all_off, d, NULL);
		taken[index] = true;
	}
	engine_update(index, reap, d, NULL);
}

void engine_leave(void)
{
	for (int i = 0; i < DEVICES; i++)
		if (devices[i].shared && devices[i].pid == getpid())
			engine_update(i, take_all_off, &devices[i], NULL);
}

// ---- the device's memory, and the bus

static uint64_t memory_of_all(const struct engine *e)
{
	uint64_t bytes = 0;
	for (int i = 0; i < ENGINE_PROCESSES; i++)
		bytes += e->memory[i];
	return bytes;
}

struct demand {
	int process;
	uint64_t bytes, total;
	bool met;
};

static void take_memory(struct engine *e, void *argument)
{
	struct demand *d = argument;
	uint64_t used = memory_of_all(e);
	d->met = used <= d->total && d->bytes <= d->total - used;
	if (d->met)
		e->memory[d->process] += d->bytes;
}

bool engine_take_memory(int index, uint64_t bytes, uint64_t total)
{
	struct demand d = {devices[index].process, bytes, total, false};
	engine_update(index, take_memory, &d, NULL);
	if (!d.met) { // a process may have died with its memory
		engine_reap(index);
		engine_update(index, take_memory, &d, NULL);
	}
	return d.met;
}

static void give_memory(struct engine *e, void *argument)
{
	const struct demand *d = argument;
	e->memory[d->process] -= d->bytes;
}

void engine_give_memory(int index, uint64_t bytes)
{
	struct demand d = {.process = devices[index].process, .bytes = bytes};
	engine_update(index, give_memory, &d, NULL);
}

uint64_t engine_memory(int index)
{
	struct engine e;
	engine_reap(index);
	engine_update(index, NULL, NULL, &e);
	return memory_of_all(&e);
}

struct journey {
	int process, direction;
	uint64_t until;
	struct bus_users users;
};

static void take_bus(struct engine *e, void *argument)
{
	struct journey *j = argument;
	e->copying[j->direction][j->process] = j->until;
	j->users = (struct bus_users){0};
	for (int i = 0; i < ENGINE_PROCESSES; i++) {
		j->users.beside += i != j->process && e->copying[j->direction][i] > e->at;
		j->users.opposite += e->copying[!j->direction][i] > e->at;
	}
}

struct bus_users engine_bus(int index, int direction, uint64_t until)
{
	struct journey j = {devices[index].process, direction, until, {0}};
	engine_update(index, take_bus, &j, NULL);
	return j.users;
}

_Atomic uint32_t *engine_bell(int index, int tsg) { return &devices[index].shared->bell[tsg]; }

void engine_ring(_Atomic uint32_t *bell)
{
	atomic_fetch_add(bell, 1);
	syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void engine_sleep(_Atomic uint32_t *bell, uint32_t seen, uint64_t until_ns)
{
	struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
	syscall(SYS_futex, bell, FUTEX_WAIT_BITSET, seen, until_ns == NEVER ? NULL : &t, NULL, FUTEX_BITSET_MATCH_ANY);
}
