// print.c - prints the work under way, for people who look at a program that hangs.
#define _GNU_SOURCE
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>

static void print_engine(FILE *f, int device, const struct engine *e)
{
	fprintf(f,
		"GPU %d at %" PRIu64 ": TSG %d loaded, %d next at %" PRIu64 ", granted %" PRIu64 ", contended %" PRIu64
		", dry %" PRIu64 ", turned %" PRIu64 "\n",
		device, e->at, e->current, e->next, e->switch_end, e->granted, e->contended, e->dry, e->turned);
	for (int i = 0; i < ENGINE_TSGS; i++) {
		const struct tsg *t = &e->tsg[i];
		if (t->used)
			fprintf(f,
				"  TSG %d of process %u%s: ran %" PRIu64 " of %" PRIu64 ", holds until %" PRIu64
				", begun %" PRIu64 " %" PRIu64 ", methods %" PRIu64 " %" PRIu64 ", slice %" PRIu64 "\n",
				i, t->process, t->off ? " off" : "", t->ran_ns, t->work_ns, t->hold_until, t->begun_ns,
				t->begun_until, t->methods_ns, t->methods_until, t->slice_ns);
	}
}

static void print_stream(FILE *f, const struct CUstream_st *s)
{
	for (const struct op *o = s->head; o; o = o->next) {
		int waits = 0;
		for (int i = 0; i < o->deps; i++)
			waits += !o->dep[i]->done;
		fprintf(f,
			"  stream %" PRIu64 " channel %d: operation %" PRIu64
			" kind %d%s%s%s%s%s, waits for %d, run clock %" PRIu64 " to %" PRIu64 ", ends %" PRIu64 "\n",
			s->id, s->channel, o->number, (int)o->work.kind, o->done ? " done" : "",
			o->started ? " started" : "", o->queued ? " queued" : "", o->blocked ? " blocked" : "",
			o->handed ? " handed" : "", waits, o->start_run, o->end_run, o->end_ns);
	}
}

// Prints the engines of this process's contexts, as all processes see them, and the operations that are not done.
API void simcuda_print(FILE *f)
{
	pthread_mutex_lock(&sim_lock);
	for (const struct CUctx_st *c = sim_contexts; c; c = c->next) {
		struct engine now;
		engine_update(c->device, NULL, NULL, &now);
		print_engine(f, c->device, &now);
		fprintf(f, " context %" PRIu64 ", TSG %d%s\n", c->id, c->tsg, c->locked ? ", locked" : "");
		for (const struct CUstream_st *s = c->streams; s; s = s->next)
			print_stream(f, s);
		if (c->legacy)
			print_stream(f, c->legacy);
	}
	sim_unlock();
	fflush(f);
}
