// Prints the priorities of streams: asked for, as the program hears of them, and in the driver. With an argument it first prints the
// priority of the client and then becomes that program; NAME=VALUE before it is put into its environment. The program applies LATE
// (NAME=VALUE; NAME alone removes it) to its own environment before the driver is initialised.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(F) \
	F(cuStreamCreateWithPriority, (handle *, unsigned, int)) \
	F(cuStreamGetPriority, (handle, int *)) \
	F(simcuda_client_priority, (void)) \
	F(simcuda_stream_priority, (handle))

#include "driver.h"

static void say(const char *what, handle stream)
{
	int heard = 99;
	OK(cuStreamGetPriority(stream, &heard));
	printf("%s heard %d has %d\n", what, heard, simcuda_stream_priority(stream));
}

int main(int argc, char **argv)
{
	handle context, stream, kept;
	char *late = getenv("LATE");
	if (late) // NAME=VALUE, or NAME to take it out
		putenv(late);
	find_driver();
	OK(cuInit(0));
	printf("client %d\n", simcuda_client_priority());
	fflush(stdout);
	if (argc > 1) {
		for (; strchr(argv[1], '='); argv++)
			putenv(argv[1]);
		execv(argv[1], argv + 1);
		return 127;
	}
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&kept, 1));
	say("plain", kept);
	for (int asked = -7; asked <= 1; asked += 4) {
		char what[32];
		OK(cuStreamCreateWithPriority(&stream, 1, asked));
		snprintf(what, sizeof what, "asked %d", asked);
		say(what, stream);
		OK(cuStreamDestroy_v2(stream));
	}
	for (int i = 0; i < 200; i++) // more than the library has room for at first
		OK(cuStreamCreateWithPriority(&stream, 1, -i % 5));
	say("last", stream);
	say("plain", kept);
	handle second;
	printf("no stream %d, no flags %d\n", cuStreamCreate(NULL, 0), cuStreamCreateWithPriority(&second, 1u << 30, 0));
	return 0;
}
