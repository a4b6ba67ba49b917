package patch

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
)

const (
	instructionSize = 16
	hiddenSize      = 8 // the hidden parameter: a pointer
)

// MaxFieldShift keeps a Field within the low 64 bits of an instruction.
const MaxFieldShift = 64 - 16

// Field is a place in the guard's code for the offset of the hidden parameter in constant bank 0, shifted left by Shift.
type Field struct {
	Instruction int `json:"instruction"`
	Shift       int `json:"shift"`
}

// Guard is the prologue for one architecture.
type Guard struct {
	SM         int      `json:"sm"`
	Registers  int      `json:"registers"`
	Barriers   int      `json:"barriers"`
	Parameters []uint32 `json:"parameters"` // where kernel parameters may begin in constant bank 0, rising
	UsesCTAIDZ bool     `json:"uses_ctaid_z"`
	Exits      []uint32 `json:"exits"` // offsets of its EXIT instructions
	Fields     []Field  `json:"fields"`
	Code       []string `json:"code"` // an instruction each, in hexadecimal, as in memory

	code []byte
}

// Guards are the prologues for all architectures.
type Guards struct {
	bySM map[int]*Guard
}

// ParseGuards reads guard.json (kernels/guard/generate).
func ParseGuards(data []byte) (*Guards, error) {
	var list []*Guard
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("guards: %w", err)
	}
	guards := &Guards{bySM: make(map[int]*Guard)}
	for _, g := range list {
		for _, line := range g.Code {
			instruction, err := hex.DecodeString(line)
			if err != nil || len(instruction) != instructionSize {
				return nil, fmt.Errorf("guard for sm_%d: bad instruction %q", g.SM, line)
			}
			g.code = append(g.code, instruction...)
		}
		if len(g.code) == 0 || len(g.code)%insertionAlignment != 0 || len(g.code) > maxGuardSize {
			return nil, fmt.Errorf("guard for sm_%d: %d bytes", g.SM, len(g.code))
		}
		if len(g.Parameters) == 0 {
			return nil, fmt.Errorf("guard for sm_%d: no place for parameters", g.SM)
		}
		for _, f := range g.Fields {
			if f.Instruction < 0 || f.Instruction >= len(g.Code) || f.Shift < 0 || f.Shift > MaxFieldShift {
				return nil, fmt.Errorf("guard for sm_%d: bad field", g.SM)
			}
		}
		guards.bySM[g.SM] = g
	}
	return guards, nil
}

// maxGuardSize is part of the bound that Cubin documents.
const maxGuardSize = 2048

// instance returns the guard for a hidden parameter at an offset (a multiple of 8) of constant bank 0.
func (g *Guard) instance(offset uint32) []byte {
	code := append([]byte(nil), g.code...)
	for _, f := range g.Fields {
		instruction := code[f.Instruction*instructionSize:]
		le.PutUint64(instruction, le.Uint64(instruction)|uint64(offset)<<f.Shift)
	}
	return code
}

// begins says whether code begins with this guard, with any offset.
func (g *Guard) begins(code []byte) bool {
	if len(code) < len(g.code) {
		return false
	}
	holds := make([]bool, len(g.code)/instructionSize)
	for _, f := range g.Fields {
		holds[f.Instruction] = true
	}
	for i, field := range holds {
		if !field && string(code[i*instructionSize:][:instructionSize]) != string(g.code[i*instructionSize:][:instructionSize]) {
			return false
		}
	}
	return true
}

// Code returns the guard for an architecture and a hidden parameter at an offset (a multiple of 8) of constant bank 0.
func (g *Guards) Code(sm int, offset uint32) (code []byte, ok bool) {
	guard, ok := g.bySM[sm]
	if !ok {
		return nil, false
	}
	return guard.instance(offset), true
}
