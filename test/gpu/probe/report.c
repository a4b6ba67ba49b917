// report.c - a section's findings: lines on standard output, fields separated by tabs.
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

void add(struct samples *s, double value)
{
	if (s->count == s->room) {
		s->room = s->room ? 2 * s->room : 256;
		s->value = realloc(s->value, s->room * sizeof *s->value);
		if (!s->value)
			give_up("no memory");
	}
	s->value[s->count++] = value;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double quantile(const struct samples *s, double q)
{
	double place = q * (double)(s->count - 1);
	size_t below = (size_t)place;
	if (below + 1 >= s->count)
		return s->value[s->count - 1];
	return s->value[below] + (place - (double)below) * (s->value[below + 1] - s->value[below]);
}

struct summary sum_up(struct samples *s)
{
	struct summary sum = {.count = s->count};
	if (s->count) {
		qsort(s->value, s->count, sizeof *s->value, by_size);
		sum.p50 = quantile(s, .5);
		sum.p99 = quantile(s, .99);
		sum.max = s->value[s->count - 1];
	}
	s->count = 0;
	return sum;
}

void figure(struct summary sum, const char *unit, const char *format, ...)
{
	char name[256];
	va_list list;
	va_start(list, format);
	vsnprintf(name, sizeof name, format, list);
	va_end(list);
	printf("figure\t%s\t%s\t%zu\t%.3f\t%.3f\t%.3f\n", name, unit, sum.count, sum.p50, sum.p99, sum.max);
	fflush(stdout);
}

void fact(const char *value, const char *format, ...)
{
	char name[256];
	va_list list;
	va_start(list, format);
	vsnprintf(name, sizeof name, format, list);
	va_end(list);
	printf("fact\t%s\t%s\n", name, value);
	fflush(stdout);
}

void row(const char *table, const char *format, ...)
{
	char values[512];
	va_list list;
	va_start(list, format);
	vsnprintf(values, sizeof values, format, list);
	va_end(list);
	printf("row\t%s\t%s\n", table, values);
	fflush(stdout);
}

const char *text(const char *format, ...)
{
	static __thread char texts[8][256];
	static __thread unsigned next;
	char *one = texts[next++ % 8];
	va_list list;
	va_start(list, format);
	vsnprintf(one, sizeof texts[0], format, list);
	va_end(list);
	return one;
}
