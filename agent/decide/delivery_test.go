package decide

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// each calls f with all deliveries.
func each(f func(Delivery)) {
	fields := reflect.TypeFor[Delivery]().NumField()
	for bits := range 1 << fields {
		var d Delivery
		for i := range fields {
			reflect.ValueOf(&d).Elem().Field(i).SetBool(bits&(1<<i) != 0)
		}
		f(d)
	}
}

// What lets a delivery through a gate, and what alone does not.
func TestExemptions(t *testing.T) {
	const window, review = "window", "review"
	for field, want := range map[string][]string{
		"First": {window, review}, "Rollback": {window, review}, "DryRun": {window}, "Repair": {window}, "Approved": {window}, "Forced": {window}, "AccessChanged": {window},
		"SameCommit": nil, "SameRules": nil, "LacksFiles": nil, "Recorded": nil,
		"LacksFiles, Recorded": {window}, "SameCommit, SameRules": {review}, "SameCommit, LacksFiles": {review}, "SameCommit, Recorded": nil,
	} {
		t.Run(field, func(t *testing.T) {
			d := with(field)
			assert.Equal(t, !slices.Contains(want, window), d.WaitsForWindow(), "maintenance window")
			assert.Equal(t, !slices.Contains(want, review), d.NeedsReview(), "validation webhook")
		})
	}
	assert.True(t, Delivery{}.WaitsForWindow())
	assert.True(t, Delivery{}.NeedsReview())
}

// with returns a delivery with these fields set.
func with(fields string) (d Delivery) {
	for i := range reflect.TypeFor[Delivery]().NumField() {
		name := reflect.TypeFor[Delivery]().Field(i).Name
		if slices.Contains(strings.Split(fields, ", "), name) {
			reflect.ValueOf(&d).Elem().Field(i).SetBool(true)
		}
	}
	return d
}

// More facts about a delivery never close a gate that fewer open.
func TestExemptionsAdd(t *testing.T) {
	each(func(d Delivery) {
		for i := range reflect.TypeFor[Delivery]().NumField() {
			more := d
			reflect.ValueOf(&more).Elem().Field(i).SetBool(true)
			assert.False(t, !d.WaitsForWindow() && more.WaitsForWindow(), "%+v", more)
			assert.False(t, !d.NeedsReview() && more.NeedsReview(), "%+v", more)
		}
	})
}
