// Package mutant switches known faults on, so that the simulation can show that it would find them.
//
// Without the build tag mutant, On is constantly false: the compiler removes the branch and the
// product holds no faulty code. With the tag, Set names the one fault that is on. A mutant is named
// after the rule that it breaks in the table of docs/adr/0002; the place in the code says no more than
//
//	if mutant.On("name") { … }
package mutant
