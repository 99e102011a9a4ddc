package apply

import (
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Health is the health of an object.
type Health struct {
	Healthy bool
	// Failed means that waiting does not help.
	Failed bool
	// Message says what is missing.
	Message string
}

// HealthOf returns the health of a live object by the rules of kstatus. A kind without a status is healthy once it exists.
func HealthOf(live *unstructured.Unstructured) (h Health) {
	defer func() { // a status that a foreign controller wrote may make kstatus panic
		if r := recover(); r != nil {
			h = Health{Message: "its status cannot be read"}
		}
	}()
	result, err := status.Compute(live)
	switch {
	case err != nil:
		return Health{Message: "its status cannot be read"}
	case result.Status == status.CurrentStatus:
		return Health{Healthy: true}
	}
	return Health{Failed: result.Status == status.FailedStatus, Message: oneLine(fmt.Sprintf("%s: %s", result.Status, result.Message))}
}
