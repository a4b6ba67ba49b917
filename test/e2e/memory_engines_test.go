package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
)

// Engines that plan by free memory; caps and limits of memory.

// top's table and the doctor name a cap: by the driver's answer, or by what the process had when the driver refused it more beside room.
func TestCapIsNamed(t *testing.T) {
	t.Parallel()
	for _, cap := range caps {
		t.Run(cap.name, func(t *testing.T) {
			t.Parallel()
			m := newSmall(t, "", "SIMCUDA_MEMORY_MB=1024")
			p := m.capped("be", cap.format, 128)
			p.filled("memory", 36<<20, 1)
			for range 3 {
				if _, result := p.allocate("memory", 190<<20); result != outOfMemory {
					t.Fatalf("result %d", result)
				}
			}
			m.until("others know of the cap", func() bool {
				is := m.memory(p).Cap
				return cap.told && is == 128<<20 || !cap.told && is >= 36<<20 && is < 128<<20
			})
			text := m.gpreempt("top", "--once").stdout
			if column, value := cell(text, "CAP", fmt.Sprint(p.pid())); !column || value == "-" {
				t.Errorf("top says %q of it:\n%s", value, text)
			}
			p.works(1)
		})
	}
	t.Run("doctor", func(t *testing.T) {
		t.Parallel()
		m := newSmall(t, "", "SIMCUDA_MEMORY_MB=1024")
		doctor := m.command("", filepath.Join(root, "build", "gpreempt"), "doctor")
		doctor.Env = append(doctor.Env, "SIMCUDA_CAP_MB=512")
		got, err := run(doctor)
		if err != nil || !strings.Contains(got.stdout, "a program's device memory is capped: the driver lets it have 512 MiB") {
			t.Errorf("%v, %+v", err, got)
		}
	})
}

// A latency-critical engine that starts behind best-effort work hears of all memory that such work can give. The answer does not grow while
// it profiles, and it gets the memory that it planned. Its own memory stays the driver's.
func TestEngineBehindBestEffort(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_MEMORY_MB=1024", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_COPY_GBS=4")
	stays, ends := m.startFilled("be", 300<<20, 1), m.startFilled("be", 500<<20, 2)
	m.until("others know", func() bool { return m.memory(stays).Resident >= 300<<20 && m.memory(ends).Resident >= 500<<20 })
	lc := m.startMemory("lc")
	first, total := lc.free()
	if total != 1024<<20 || first < 900<<20 {
		t.Fatalf("it is told that %d of %d MiB are free", first>>20, total>>20)
	}
	lc.filled("memory", 100<<20, 3)
	ends.finish()
	m.until("the other one has ended", func() bool {
		if now, _ := lc.free(); now != first-100<<20 {
			t.Errorf("%d MiB are free, at first %d", now>>20, first>>20)
		}
		return m.memory(ends).Resident == 0
	})
	lc.filled("memory", 800<<20, 4)
	m.until("the other one gave", func() bool { return m.memory(stays).Evictions != 0 })
	if of := m.memory(lc); of.Resident != 0 || of.Pinned < 900<<20 || m.peer(lc).InForce&configs.Swap != 0 {
		t.Errorf("it has %+v", of)
	}
	lc.right(2)
	lc.finish()
	stays.works(1)
}

// A best-effort engine that starts behind a latency-critical one plans with the memory that this leaves. A line says why before.
func TestEngineBehindLatencyCritical(t *testing.T) {
	t.Parallel()
	const little, never = "of the GPU's 1.0 GiB: programs that give nothing keep the rest", "never fits beside what other programs keep"
	m := newMachine(t, "", "SIMCUDA_MEMORY_MB=1024", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_COPY_GBS=4")
	was := m.startFilled("be", 500<<20, 1)
	lc := m.startFilled("lc", 700<<20, 2)
	m.until("others know", func() bool { return m.memory(lc).Pinned >= 700<<20 })
	p := m.startMemory("be")
	free, _ := p.free()
	if free < 220<<20 || free > 324<<20 {
		t.Errorf("it is told that %d MiB are free", free>>20)
	}
	p.filled("memory", free-20<<20, 3)
	p.right(1)
	if _, said := p.finish(); strings.Count(said, little) != 1 || strings.Contains(said, never) {
		t.Errorf("it says %q", said)
	}
	was.say("step 0 1") // for which its memory has to come back
	was.says(never, 1)
	again := m.startMemory("lc") // what one latency-critical program has is not promised to another
	if free, _ := again.free(); free < 220<<20 || free > 324<<20 {
		t.Errorf("a second one is told that %d MiB are free", free>>20)
	}
	if _, said := again.finish(); said != "" {
		t.Errorf("a latency-critical one says %q", said)
	}
	lc.finish()
	was.hears("result 0")
	was.right(1)
	if _, said := was.finish(); strings.Count(said, never) != 1 {
		t.Errorf("it says %q", said)
	}
}

// Without swap among the mechanisms no process gives memory: free is the driver's own answer, and refusals come at once.
func TestEngineWhereNothingSwaps(t *testing.T) {
	t.Parallel()
	m := newMachine(t, stays, "SIMCUDA_MEMORY_MB=1024", "SIMCUDA_CONTEXT_MB=20")
	be := m.startFilled("be", 500<<20, 1)
	lc := m.startMemory("lc")
	if free, _ := lc.free(); free < 440<<20 || free > 484<<20 {
		t.Errorf("it is told that %d MiB are free", free>>20)
	}
	if _, result := lc.allocate("memory", 600<<20); result != outOfMemory {
		t.Errorf("result %d", result)
	}
	if of := m.memory(lc); of.Waits != 0 {
		t.Errorf("it waited: %+v", of)
	}
	lc.filled("memory", 400<<20, 2)
	be.works(1)
	lc.right(1)
}

// cell is the text of a column in top's table that has it, for a process. Columns are two spaces apart at least.
func cell(text, column, pid string) (there bool, value string) {
	fields := func(line string) []string {
		return slices.DeleteFunc(strings.Split(line, "  "), func(f string) bool { return strings.TrimSpace(f) == "" })
	}
	at := -1
	for line := range strings.Lines(text) {
		f := fields(strings.TrimRight(line, "\n"))
		if i := slices.IndexFunc(f, func(s string) bool { return strings.TrimSpace(s) == column }); i >= 0 {
			at = i
		} else if at >= 0 && len(f) > at && f[0] == pid {
			return true, strings.TrimSpace(f[at])
		}
	}
	return false, ""
}

// A limit holds for each way to make memory, and for each program: each is out of memory at the same place, at once, and cuMemGetInfo goes
// by it. All comes back to it. Contexts count, and so does memory that graphs keep.
func TestLimitOfEachWay(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/limits.c")
	const limit, context, graphs = 256, 32, 48 // MiB
	for _, role := range []string{"lc", "be"} {
		for _, way := range []string{"memory", "small", "pitch", "managed", "async", "pool", "handle", "mapped", "array", "array of 3", "compressed array", "graph", "captured graph"} {
			for _, kept := range map[bool][]int{true: {0, graphs}, false: {0}}[way == "memory"] {
				t.Run(fmt.Sprintf("%s %s beside %d", role, way, kept), func(t *testing.T) {
					t.Parallel()
					config, variable := "[memory]\nlimit = \"25%\"\n", "" // of 1 GiB
					if role == "lc" {                                     // the variable counts
						config, variable = "[memory]\nlimit = \"200MB\"\n", "256MB"
					}
					m := newMachine(t, config, "SIMCUDA_MEMORY_MB=1024", fmt.Sprintf("SIMCUDA_CONTEXT_MB=%d", context+kept))
					cmd := m.command(role, program, way)
					cmd.Env = append(cmd.Env, fmt.Sprintf("SIMCUDA_GRAPH_MB=%d", kept), "GPREEMPT_MEMORY_LIMIT="+variable)
					out := output(t, cmd)
					for line := range strings.Lines(out) {
						var pieces, free, total int
						if _, err := fmt.Sscanf(line, "%d %d %d", &pieces, &free, &total); err != nil {
							t.Fatalf("%q: %v", out, err)
						}
						// Processes that swap have samples, and the last piece of a pool may be larger than the one
						// asked for.
						if has := 8*pieces + context + kept; has > limit || has < limit-24 || free > limit-has || total != limit {
							t.Errorf("out of memory at %d MiB, %d of %d are free: %s", has, free, total, out)
						}
					}
					if strings.Count(out, "\n") != 2 {
						t.Errorf("it says %q", out)
					}
				})
			}
		}
	}
}
