// state_test.c - with exports/state.c.
//
// The core hears what happened before there were hooks, and a forked child forgets the hooks. Ends well or says what is wrong.
#include "exports/layer.h"
#include "test/units/check.h"

#include <string.h>

static unsigned unknowns, streams, dropped;
static char unknown[64];
static CUstream stream;

void gp_drop_substitutes(void) { dropped++; }

long gp_say(const char *line, size_t bytes) { return (long)bytes; }

static void unknown_function(const char *name)
{
	unknowns++;
	strcpy(unknown, name);
}

static void stream_made(CUstream made)
{
	streams++;
	stream = made;
}

int main(void)
{
	static const struct gp_hooks hooks = {.unknown_function = unknown_function, .stream_made = stream_made};
	static const struct gp_socket_hooks socket_hooks;
	CUstream one = (CUstream)1, two = (CUstream)2;

	CHECK(!setenv("GPREEMPT_PRIORITY", "lc", 1) && gp_active());
	CHECK(!setenv("GPREEMPT_PRIORITY", "off", 1) && gp_active()); // it is read once

	// Of what came before the hooks the core hears as it installs them, once.
	gp_note_unknown("cuFirst");
	gp_note_stream(one);
	CHECK(unknowns == 0 && streams == 0);
	gp_install_hooks(&hooks);
	CHECK(gp_current_hooks() == &hooks && unknowns == 1 && !strcmp(unknown, "cuFirst") && streams == 1 && !stream);
	gp_install_hooks(&hooks);
	gp_note_unknown("cuSecond");
	CHECK(unknowns == 1 && streams == 1);
	gp_note_stream(two);
	CHECK(streams == 2 && stream == two);

	// A forked child has no hooks, and gets none.
	gp_install_socket_hooks(&socket_hooks);
	gp_armed = 1;
	CHECK(!gp_forked() && gp_installed_socket_hooks == &socket_hooks);
	gp_pass_all();
	CHECK(gp_forked() && !gp_current_hooks() && !gp_installed_socket_hooks && gp_armed == 0 && dropped == 1);
	gp_install_hooks(&hooks);
	gp_install_socket_hooks(&socket_hooks);
	CHECK(!gp_current_hooks() && !gp_installed_socket_hooks);
	return 0;
}
