// neighbour.c - a second process that has a beat, as a latency-critical program beside the one that moves memory. Its orders are "begin
// KIND" and "end". It answers "begin" by a line when the beat goes, and "end" by a line for each series.
#include <stdarg.h>
#include <string.h>

#include "memory.h"

static struct second second;
static const char *kind_of;

void neighbour_serve(void)
{
	static struct beat beat;
	char line[64], kind[16];
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "begin %15s", kind) == 1) {
			beat_start(&beat, kind);
			printf("begun\n");
		} else {
			beat_stop(&beat);
			for (int i = 0; series_name(kind, i); i++) {
				struct summary sum = sum_up(&beat.series[i]);
				printf("%zu %f %f %f\n", sum.count, sum.p50, sum.p99, sum.max);
			}
		}
		fflush(stdout);
	}
}

void neighbour_start(void) { second_start(&second, NULL); }

void neighbour_begin(const char *kind)
{
	kind_of = kind;
	second_order(&second, "begin %s", kind);
	second_answer(&second);
}

void neighbour_end(const char *format, ...)
{
	char beside[192];
	va_list list;
	va_start(list, format);
	vsnprintf(beside, sizeof beside, format, list);
	va_end(list);
	second_order(&second, "end");
	struct summary sums[SERIES];
	for (int i = 0; series_name(kind_of, i); i++) {
		struct summary *s = &sums[i];
		const char *line = second_answer(&second);
		if (sscanf(line, "%zu %lf %lf %lf", &s->count, &s->p50, &s->p99, &s->max) != 4)
			give_up("the second process says %s", line);
	}
	beat_figures("second process", kind_of, sums, beside);
}
