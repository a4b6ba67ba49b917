// nvtx_tool.c - another NVTX tool, which says at the process's end how many ranges it saw begin and end.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static _Atomic unsigned begun, ended;
static int push(const char *name) { return (void)name, (int)begun++; }
static int pop(void) { return (int)ended++; }

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*get)(uint32_t))
{
	const struct {
		size_t size;
		int (*get)(int, void ****, unsigned *);
	} *callbacks = get(1);
	void ***core;
	unsigned size;
	if (!callbacks->get(1, &core, &size))
		return 0;
	*core[9] = (void *)push, *core[11] = (void *)pop;
	return 1;
}

__attribute__((destructor)) static void say(void) { fprintf(stderr, "tool: begun %u ended %u\n", begun, ended); }
