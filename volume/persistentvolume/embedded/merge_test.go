package embedded

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestMerge(t *testing.T) {
	for name, tc := range map[string]struct{ stored, declared, last, want string }{
		"nothing is declared":           {`{"a":1}`, `{}`, `{}`, `{"a":1}`},
		"a new field":                   {`{"a":1}`, `{"b":2}`, `{}`, `{"a":1,"b":2}`},
		"another value":                 {`{"a":1}`, `{"a":2}`, `{"a":1}`, `{"a":2}`},
		"what somebody else has set":    {`{"a":2}`, `{"a":1}`, `{"a":1}`, `{"a":1}`},
		"declared no more":              {`{"a":1,"b":2}`, `{"b":2}`, `{"a":1,"b":2}`, `{"b":2}`},
		"never declared":                {`{"a":1,"b":2}`, `{"b":2}`, `{"b":2}`, `{"a":1,"b":2}`},
		"of an object":                  {`{"o":{"mine":1,"theirs":2}}`, `{"o":{}}`, `{"o":{"mine":1}}`, `{"o":{"theirs":2}}`},
		"a whole object, others' stays": {`{"o":{"mine":1,"theirs":2}}`, `{}`, `{"o":{"mine":1}}`, `{"o":{"theirs":2}}`},
		"a whole object":                {`{"o":{"mine":1},"p":1}`, `{}`, `{"o":{"mine":1}}`, `{"p":1}`},
		"an object in an object":        {`{"o":{"p":{"a":1,"b":2}}}`, `{"o":{"p":{"b":3}}}`, `{"o":{"p":{"a":1}}}`, `{"o":{"p":{"b":3}}}`},
		"a list is a value":             {`{"l":[1,2]}`, `{"l":[2]}`, `{"l":[1]}`, `{"l":[2]}`},
		"a value becomes an object":     {`{"a":1}`, `{"a":{"b":1}}`, `{"a":1}`, `{"a":{"b":1}}`},
		"an object becomes a value":     {`{"a":{"b":1}}`, `{"a":1}`, `{"a":{"b":1}}`, `{"a":1}`},
		"one source for another":        {`{"nfs":{"path":"/a"}}`, `{"hostPath":{"path":"/b"}}`, `{"nfs":{"path":"/a"}}`, `{"hostPath":{"path":"/b"}}`},
		"gone already":                  {`{}`, `{}`, `{"a":{"b":1}}`, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			fields := func(text string) map[string]any {
				all, err := decodeFields([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				return all
			}
			stored, declared, last := fields(tc.stored), fields(tc.declared), fields(tc.last)
			if got := merge(stored, declared, last); !reflect.DeepEqual(got, fields(tc.want)) {
				text, _ := json.Marshal(got)
				t.Errorf("got %s, want %s", text, tc.want)
			}
			if !reflect.DeepEqual([]any{stored, declared, last}, []any{fields(tc.stored), fields(tc.declared), fields(tc.last)}) {
				t.Error("the arguments were changed")
			}
		})
	}
}
