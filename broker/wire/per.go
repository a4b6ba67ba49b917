package wire

import "slices"

// Per says whose share and memory a rule of the policy means. It is each client's own, or clients divide it that the rule holds for: all
// of one user, of one cgroup, or of the rule.
type Per uint8

// The values of Per, in the order of the texts.
const (
	PerProcess Per = iota
	PerUser
	PerCgroup
	PerRule
	pers
)

var perTexts = [pers]string{"process", "user", "cgroup", "rule"}

func (p Per) String() string { return perTexts[p] }

// ParsePer reads one.
func ParsePer(text string) (p Per, ok bool) {
	i := slices.Index(perTexts[:], text)
	return Per(max(i, 0)), i >= 0
}
