// Command generate writes guard.json: the guard's instructions for the architectures that are its arguments, as the
// pinned compiler makes them from guard.cu. kernels/generate.sh runs it, with the compiler in NVCC.
package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/gpreempt/gpreempt/patch"
)

func main() {
	if err := generate(os.Getenv("NVCC"), "guard.cu", "guard.json", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(nvcc, source, destination string, architectures []string) error {
	folder, err := os.MkdirTemp("", "guard")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	var guards []patch.Guard
	output := filepath.Join(folder, "guard.cubin")
	for _, sm := range architectures {
		guard, err := compile(nvcc, source, output, sm)
		if err != nil {
			return fmt.Errorf("sm_%s: %w", sm, err)
		}
		guards = append(guards, guard)
	}
	text, err := json.MarshalIndent(guards, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(destination, append(text, '\n'), 0o644)
}

// The guard's length must be a multiple of unit instructions, 128 bytes, so that kernels keep their alignment. guard.cu has
// the padding in a place that few blocks pass. NOPs in front, which every warp executes, made even launches without a
// record slower.
const unit = 128 / instructionSize

var errLength = errors.New("not a multiple of 128 bytes")

func compile(nvcc, source, output, sm string) (guard patch.Guard, err error) {
	// Padding may change the compiler's layout, so the missing length without padding is not the answer.
	for padding := range 2 * unit {
		command := exec.Command(nvcc, "-cubin", "-O3", "-std=c++17", "-arch=sm_"+sm,
			fmt.Sprintf("-DPADDING=%d", padding), "-o", output, source)
		if text, err := command.CombinedOutput(); err != nil {
			return patch.Guard{}, fmt.Errorf("%v: %w\n%s", command, err, text)
		}
		image, err := os.ReadFile(output)
		if err != nil {
			return patch.Guard{}, err
		}
		if guard, err = extract(image); !errors.Is(err, errLength) {
			return guard, err
		}
	}
	return patch.Guard{}, errLength
}

// extract makes one guard of all the variants in a cubin.
func extract(image []byte) (patch.Guard, error) {
	variants, err := patch.Describe(image)
	if err != nil {
		return patch.Guard{}, err
	}
	if len(variants) < 2 {
		return patch.Guard{}, errors.New("no variants to compare")
	}
	var bodies [][]instruction
	for _, v := range variants {
		body, err := body(v.Code)
		if err != nil {
			return patch.Guard{}, fmt.Errorf("%s: %w", v.Name, err)
		}
		bodies = append(bodies, body)
	}
	first := variants[0]
	guard := patch.Guard{
		SM: first.SM, Registers: first.Registers, Barriers: first.Barriers,
		UsesCTAIDZ: first.UsesCTAIDZ,
	}
	for _, v := range variants {
		guard.Parameters = append(guard.Parameters, uint32(v.Base))
	}
	slices.Sort(guard.Parameters)
	guard.Parameters = slices.Compact(guard.Parameters)
	for n, i := range bodies[0] {
		if i.low()&0xfff == opEXIT {
			guard.Exits = append(guard.Exits, uint32(n*instructionSize))
		}
	}
	for i := range bodies[0] {
		var same []instruction
		for k := range bodies {
			if len(bodies[k]) != len(bodies[0]) || variants[k].Registers != guard.Registers {
				return patch.Guard{}, errors.New("the variants are not alike")
			}
			same = append(same, bodies[k][i])
		}
		code, shift, err := compare(same, variants)
		if err != nil {
			return patch.Guard{}, fmt.Errorf("instruction %d: %w", i, err)
		}
		if shift >= 0 {
			guard.Fields = append(guard.Fields, patch.Field{Instruction: i, Shift: shift})
		}
		guard.Code = append(guard.Code, hex.EncodeToString(code[:]))
	}
	// Of the compiler's list of exits, one lies behind the guard.
	if len(guard.Fields) == 0 || len(guard.Exits) == 0 || len(guard.Exits) != len(first.Exits)-1 {
		return patch.Guard{}, errors.New("no parameter or no exit")
	}
	if len(guard.Code)%unit != 0 {
		return patch.Guard{}, errLength
	}
	return guard, check(guard, bodies, variants)
}

// check makes every variant again from the guard, and compares.
func check(guard patch.Guard, bodies [][]instruction, variants []patch.Description) error {
	text, err := json.Marshal([]patch.Guard{guard})
	if err != nil {
		return err
	}
	guards, err := patch.ParseGuards(text)
	if err != nil {
		return err
	}
	for k, v := range variants {
		code, _ := guards.Code(guard.SM, hiddenOffset(v))
		if !bytes.Equal(code, join(bodies[k])) {
			return fmt.Errorf("%s is not what was learnt", v.Name)
		}
	}
	return nil
}

func join(body []instruction) (code []byte) {
	for _, i := range body {
		code = append(code, i[:]...)
	}
	return code
}

func hiddenOffset(v patch.Description) uint32 { return uint32(v.Base + v.ParameterBytes - 8) }
