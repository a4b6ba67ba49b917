// place.c - where blocks go, how many are on an SM at once, and how soon a freed place is used.
#include <stdlib.h>

#include "spatial.h"

static CUstream low, high;

static struct work arithmetic(enum kernel k, unsigned grid, unsigned threads, double us)
{
	struct work w = {.kernel = k, .threads = threads, .grid = grid, .blocks = grid};
	w.iterations = iterations_for(w, us, false);
	return w;
}

static struct spatial_record *run_alone(struct lane *l, struct work w)
{
	w.records = records_make(w.grid);
	lane_launch(l, &w);
	CHECK(cuStreamSynchronize(l->stream));
	return records_read(w.records, w.grid);
}

// ---- each kind of work, alone

static void shape(struct lane *l, const char *of, const char *name, struct work w)
{
	int registers = 0;
	struct samples s = {0};
	CHECK(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel[w.kernel]));
	for (int i = 0; i < (plan.quick ? 3 : 200); i++) {
		double began = now_us();
		lane_launch(l, &w);
		CHECK(cuStreamSynchronize(l->stream));
		add(&s, now_us() - began);
	}
	struct spatial_record *r = run_alone(l, w);
	struct summary sum = sum_up(&s);
	row("shapes", "of=%s\tkind=%s\tblocks=%u\tthreads=%u\tshared=%u\tregisters=%d\tfit=%u\tsms=%u\tmost=%u\tp50=%.1f\tp99=%.1f",
	    of, name, w.grid, w.threads, w.shared, registers, resident(&w), sms_of(r, w.grid), most_at_once(r, w.grid),
	    sum.p50, sum.p99);
}

void section_shapes(void)
{
	struct lane l;
	lane_make(&l, stream_of(gpu.low));
	lc_begin();
	for (int i = 0; i < LC_KINDS; i++)
		if (lc_work(i))
			shape(&l, "LC", lc_name[i], *lc_work(i));
	for (int i = 0; i < BE_KINDS; i++) {
		struct work w = *be_work(i); // a wave of it
		use_shared(&w);
		shape(&l, "BE", be_name[i], w);
	}
	struct samples s = {0};
	for (int i = 0; i < (plan.quick ? 3 : 200); i++) {
		double began = now_us();
		lc_request(LC_KINDS - 1, true);
		add(&s, now_us() - began);
	}
	figure(sum_up(&s), "us", "the chain of 50 kernels, alone");
}

// ---- a second kernel beside one that leaves SMs

static unsigned on_same_sms(const struct spatial_record *a, unsigned count_a, const struct spatial_record *b,
			    unsigned count_b)
{
	unsigned same = 0;
	for (unsigned i = 0; i < count_b; i++)
		for (unsigned j = 0; j < count_a; j++)
			if (a[j].sm == b[i].sm) {
				same++;
				break;
			}
	return same;
}

// The first runs for a ms; the second is launched while it does.
static void beside(struct lane *first, struct lane *second, unsigned blocks_a, unsigned threads_a, unsigned blocks_b,
		   unsigned threads_b)
{
	struct work a = arithmetic(FMA, blocks_a, threads_a, 1000), b = arithmetic(FMA, blocks_b, threads_b, 100);
	a.records = records_make(a.grid);
	b.records = records_make(b.grid);
	lane_launch(first, &a);
	for (double began = now_us(); !lane_has_begun(first, first->last) && now_us() - began < 1e6;)
		pause_us(20);
	pause_us(100);
	lane_launch(second, &b);
	CHECK(cuStreamSynchronize(second->stream));
	CHECK(cuStreamSynchronize(first->stream));
	struct spatial_record *ra = records_read(a.records, a.grid), *rb = records_read(b.records, b.grid);
	row("placement", "first=%u x %u\tsecond=%u x %u\tfirst_sms=%u\tsecond_sms=%u\tsecond_on_first=%u\tmost=%u",
	    a.grid, a.threads, b.grid, b.threads, sms_of(ra, a.grid), sms_of(rb, b.grid),
	    on_same_sms(ra, a.grid, rb, b.grid), most_at_once(rb, b.grid));
	free(ra);
	free(rb);
}

// ---- whether padding caps the blocks on an SM

static void residency(struct lane *l, int kind, double part)
{
	struct work w = *be_work(kind);
	unsigned fit = resident(&w), asked = part * fit < 1 ? 1 : (unsigned)(part * fit);
	w.shared = padding(&w, asked);
	use_shared(&w);
	w.grid = (unsigned)gpu.sms * resident(&w) * 4;
	w.blocks = w.grid;
	struct spatial_record *r = run_alone(l, w);
	row("residency", "be=%s\tshared=%u\tfit=%u\tasked=%u\tsays=%u\tmost=%u\tsms=%u", be_name[kind], w.shared, fit,
	    asked, resident(&w), most_at_once(r, w.grid), sms_of(r, w.grid));
	free(r);
}

// ---- how soon a freed place is used

static double cycles_in_us(const struct spatial_record *r, unsigned count)
{
	double rate = 0;
	uint64_t longest = 0;
	for (unsigned i = 0; i < count; i++)
		if (r[i].end_ns - r[i].begin_ns > longest) {
			longest = r[i].end_ns - r[i].begin_ns;
			rate = (double)(r[i].end - r[i].begin) / (double)longest * 1000;
		}
	return rate > 0 ? rate : 1000;
}

// From the last end on an SM to a later block's beginning there. Blocks that began in free places have none before them.
static void tell_gaps(const struct spatial_record *before, unsigned befores, const struct spatial_record *after,
		      unsigned afters, const char *what)
{
	struct samples s = {0};
	double rate = cycles_in_us(before, befores);
	for (unsigned i = 0; i < afters; i++) {
		uint64_t last = 0;
		for (unsigned j = 0; j < befores; j++)
			if (before[j].sm == after[i].sm && before[j].end <= after[i].begin && before[j].end > last)
				last = before[j].end;
		if (last)
			add(&s, (double)(after[i].begin - last) / rate);
	}
	if (s.count == 0)
		fact("none began where one had ended", "from a block's end to the next beginning on its SM: %s", what);
	else
		figure(sum_up(&s), "us", "from a block's end to the next beginning on its SM: %s", what);
}

static void refill(struct lane *first, struct lane *second, double us, const char *what)
{
	struct work w = *be_work(1), next = arithmetic(FMA, (unsigned)gpu.sms, 1024, 40);
	w.iterations = (uint64_t)((double)w.iterations * us / 10);
	w.grid *= plan.quick ? 2 : us < 20 ? 24 : 6;
	w.blocks = w.grid;
	w.records = records_make(w.grid);
	next.records = records_make(next.grid);
	lane_launch(first, &w);
	for (double began = now_us(); !lane_has_begun(first, first->last) && now_us() - began < 1e6;)
		;
	lane_launch(second, &next);
	CHECK(cuStreamSynchronize(second->stream));
	CHECK(cuStreamSynchronize(first->stream));
	struct spatial_record *r = records_read(w.records, w.grid), *n = records_read(next.records, next.grid);
	tell_gaps(r, w.grid, r, w.grid, text("the same launch, %s", what));
	tell_gaps(r, w.grid, n, next.grid, what);
	uint64_t begun = ~0ull, last = 0;
	for (unsigned i = 0; i < next.grid; i++) {
		begun = n[i].begin_ns < begun ? n[i].begin_ns : begun;
		last = n[i].begin_ns > last ? n[i].begin_ns : last;
	}
	fact(text("%.1f us", (double)(last - begun) / 1000), "from its first block's beginning to its last one's: %s",
	     what);
	free(r);
	free(n);
}

void section_placement(void)
{
	static const unsigned firsts[] = {16, 66, 132}, seconds[][2] = {{66, 256}, {132, 1024}};
	struct lane a, b, urgent;
	low = stream_of(gpu.low);
	high = stream_of(gpu.high);
	lane_make(&a, low);
	lane_make(&b, stream_of(gpu.low));
	lane_make(&urgent, high);
	be_prepare();
	for (size_t i = 0; i < 3; i++)
		for (size_t k = 0; k < 2; k++)
			beside(&a, &b, firsts[i], 1024, seconds[k][0], seconds[k][1]);
	for (int kind = 0; kind < BE_KINDS; kind++) {
		residency(&a, kind, 0);
		residency(&a, kind, .5);
	}
	use_shared(be_work(1));
	refill(&a, &b, 10, "a kernel of the same priority behind blocks of 10 us");
	refill(&a, &urgent, 10, "an urgent kernel beside blocks of 10 us");
	refill(&a, &urgent, 100, "an urgent kernel beside blocks of 100 us");
}
