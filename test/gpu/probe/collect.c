// collect.c - writes the sections' findings, as one JSON object and as a table.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum { FIGURES, FACTS, ROWS, KINDS, FIELDS = 24 };
static const char *const kinds[KINDS] = {"figure", "fact", "row"};
static struct found {
	struct line { char *field[FIELDS]; } *line;
	size_t count;
} found[KINDS];

static char **add_line(struct found *f)
{
	f->line = realloc(f->line, (f->count + 1) * sizeof *f->line);
	if (!f->line)
		give_up("no memory");
	struct line *one = &f->line[f->count++];
	memset(one, 0, sizeof *one);
	return one->field;
}

void take_line(char *line)
{
	char *rest = line, *word = strsep(&rest, "\t");
	for (int kind = 0; kind < KINDS; kind++) {
		if (strcmp(word, kinds[kind]) != 0)
			continue; // anything else is a warning of somebody's
		char **field = add_line(&found[kind]);
		for (int i = 0; i < FIELDS && rest; i++)
			field[i] = strdup(strsep(&rest, "\t"));
	}
}

static void json_text(FILE *out, const char *value)
{
	fputc('"', out);
	for (const char *c = value ? value : ""; *c; c++) {
		if (*c == '"' || *c == '\\')
			fputc('\\', out);
		if ((unsigned char)*c >= ' ')
			fputc(*c, out);
	}
	fputc('"', out);
}

// Writes a number unchanged, anything else as text.
static void json_value(FILE *out, const char *value)
{
	size_t digits = strspn(value, "0123456789");
	bool number = digits && (!value[digits] ||
				 (value[digits] == '.' && !value[digits + 1 + strspn(value + digits + 1, "0123456789")]));
	if (number)
		fputs(value, out);
	else
		json_text(out, value);
}

static void json_figures(FILE *out)
{
	for (size_t i = 0; i < found[FIGURES].count; i++) {
		char **f = found[FIGURES].line[i].field;
		fprintf(out, "%s\n  {\"name\": ", i ? "," : "");
		json_text(out, f[0]);
		fprintf(out, ", \"unit\": ");
		json_text(out, f[1]);
		fprintf(out, ", \"n\": %s, \"p50\": %s, \"p99\": %s, \"max\": %s}", f[2], f[3], f[4], f[5]);
	}
}

static void json_facts(FILE *out)
{
	for (size_t i = 0; i < found[FACTS].count; i++) {
		fprintf(out, "%s\n  {\"name\": ", i ? "," : "");
		json_text(out, found[FACTS].line[i].field[0]);
		fprintf(out, ", \"value\": ");
		json_text(out, found[FACTS].line[i].field[1]);
		fprintf(out, "}");
	}
}

static void json_rows(FILE *out)
{
	for (size_t i = 0; i < found[ROWS].count; i++) {
		char **f = found[ROWS].line[i].field;
		fprintf(out, "%s\n  {\"table\": ", i ? "," : "");
		json_text(out, f[0]);
		for (int k = 1; k < FIELDS && f[k]; k++) {
			int name = (int)strcspn(f[k], "=");
			fprintf(out, ", \"%.*s\": ", name, f[k]);
			json_value(out, f[k] + name + (f[k][name] == '='));
		}
		fprintf(out, "}");
	}
}

void write_json(FILE *out, const char *mode, double seconds, const struct ending *ending, int endings)
{
	fprintf(out, "{\"schema\": 1, \"mode\": \"%s\", \"quick\": %s, \"seconds\": %.1f,\n \"sections\": {", mode,
		plan.quick ? "true" : "false", seconds);
	for (int i = 0; i < endings; i++) {
		fprintf(out, "%s\n  \"%s\": ", i ? "," : "", ending[i].section);
		json_text(out, ending[i].text);
	}
	fprintf(out, "},\n \"figures\": [");
	json_figures(out);
	fprintf(out, "],\n \"facts\": [");
	json_facts(out);
	if (found[ROWS].count) {
		fprintf(out, "],\n \"rows\": [");
		json_rows(out);
	}
	fprintf(out, "]}\n");
}

// The names of a row's values are said where they change.
static bool same_names(char *const *a, char *const *b)
{
	for (int k = 1; k < FIELDS; k++) {
		size_t name = a[k] ? strcspn(a[k], "=") : 0;
		if (!a[k] != !b[k] || (a[k] && (strcspn(b[k], "=") != name || strncmp(a[k], b[k], name) != 0)))
			return false;
	}
	return strcmp(a[0], b[0]) == 0;
}

static void write_rows(void)
{
	for (size_t i = 0; i < found[ROWS].count; i++) {
		char **f = found[ROWS].line[i].field;
		if (i == 0 || !same_names(f, found[ROWS].line[i - 1].field)) {
			printf("\n%-12s", f[0]);
			for (int k = 1; k < FIELDS && f[k]; k++)
				printf(" %12.*s", (int)strcspn(f[k], "="), f[k]);
			printf("\n");
		}
		printf("%-12s", "");
		for (int k = 1; k < FIELDS && f[k]; k++)
			printf(" %12s", f[k] + strcspn(f[k], "=") + (strchr(f[k], '=') != NULL));
		printf("\n");
	}
}

void write_table(const struct ending *ending, int endings)
{
	printf("\n%-110s %8s %7s %12s %12s %12s\n", "figure", "unit", "n", "p50", "p99", "max");
	for (size_t i = 0; i < found[FIGURES].count; i++) {
		char **f = found[FIGURES].line[i].field;
		printf("%-110s %8s %7s %12s %12s %12s\n", f[0], f[1], f[2], f[3], f[4], f[5]);
	}
	write_rows();
	printf("\n");
	for (size_t i = 0; i < found[FACTS].count; i++)
		printf("%-90s %s\n", found[FACTS].line[i].field[0], found[FACTS].line[i].field[1]);
	printf("\n");
	for (int i = 0; i < endings; i++)
		printf("%-14s %s\n", ending[i].section, ending[i].text);
}
