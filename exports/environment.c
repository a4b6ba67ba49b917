// environment.c - the environment that the library was loaded with. By the time that CUDA is initialised, the program may have changed its own,
// or written a title over it (setproctitle).
#include "exports/layer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char **kept;

void gp_keep_environment(void)
{
	if (kept || !environ)
		return;
	size_t count = 0, bytes = 0;
	for (; environ[count]; count++)
		bytes += strlen(environ[count]) + 1;
	char **copy = calloc(1, (count + 1) * sizeof *copy + bytes);
	if (!copy)
		return;
	char *text = (char *)(copy + count + 1);
	for (size_t i = 0; i < count; i++) {
		copy[i] = text;
		text = stpcpy(text, environ[i]) + 1;
	}
	kept = copy;
}

char **gp_kept_environment(void)
{
	gp_keep_environment(); // a constructor that ran before ours may initialise CUDA
	return kept ? kept : environ;
}
