package lazyregexp_test

import (
	"testing"

	"github.com/podvol/podvol/util/lazyregexp"
)

func TestNew(t *testing.T) {
	word := lazyregexp.New(`^\w+$`)
	if !word().MatchString("word") || word().MatchString("two words") {
		t.Error("the expression does not match what it says")
	}
	if first, again := word(), word(); first != again {
		t.Error("it is compiled again")
	}
}

func TestAPatternIsCompiledAtItsFirstUse(t *testing.T) {
	broken := lazyregexp.New("(")
	defer func() {
		if recover() == nil {
			t.Error("a pattern that cannot be compiled is no panic")
		}
	}()
	broken()
}
