package main

import (
	"slices"
	"testing"
)

func TestPartsAreAllTestsOnce(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	var all []string
	for _, value := range []string{"1/3", "2/3", "3/3"} {
		var p part
		if err := p.Set(value); err != nil {
			t.Fatal(err)
		}
		if p.String() != value {
			t.Errorf("%s is shown as %s", value, p.String())
		}
		all = append(all, p.choose(names)...)
	}
	slices.Sort(all)
	if !slices.Equal(all, names) {
		t.Errorf("the parts are %v", all)
	}
	if none := (&part{}); !slices.Equal(none.choose(names), names) || none.String() != "" {
		t.Errorf("no part is %q of %v", none, none.choose(names))
	}
}

func TestOtherPartsAreRefused(t *testing.T) {
	for _, value := range []string{"", "3", "0/3", "4/3", "a/3", "1/b", "1/0"} {
		if err := new(part).Set(value); err == nil {
			t.Errorf("%q is taken for a part", value)
		}
	}
}
