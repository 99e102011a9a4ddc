package server

import (
	"encoding/json"
	"net/http"
	"strings"
)

// answer is the body of all answers to /webhook, and of errors of /status.
type answer struct {
	Result      string `json:"result"` // a Result
	Ref         string `json:"ref,omitempty"`
	RequestedAt string `json:"requestedAt,omitempty"`
	Message     string `json:"message"`
}

// Result is the outcome of a call, in the answer and in the metrics. A call to /status may also have a request.Phase as its result.
type Result string

// The results. docs/reference/receiver.md explains them.
const (
	Accepted   Result = "accepted"
	Repeated   Result = "repeated"
	Ignored    Result = "ignored"
	Withdrawn  Result = "withdrawn"
	Kept       Result = "kept"
	Pong       Result = "pong"
	Superseded Result = "superseded"
	Invalid    Result = "invalid"
	Refused    Result = "refused"
	Unknown    Result = "unknown"
	TooLarge   Result = "toolarge"
	Busy       Result = "busy"
	Failed     Result = "failed"
)

// maxMessage is how many bytes of a message writeResult keeps.
const maxMessage = 500

func writeJSON(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		code, text = http.StatusServiceUnavailable, []byte(`{"result":"failed","message":"the answer cannot be written"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the client may be gone
}

// writeResult writes an answer with a result and a message. It returns the result.
func writeResult(w http.ResponseWriter, code int, result Result, message string) Result {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	writeJSON(w, code, answer{Result: string(result), Message: message})
	return result
}

// writeUnauthorized answers an unauthenticated request. The answer is always the same.
func writeUnauthorized(w http.ResponseWriter) Result {
	w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
	w.Header().Set("Connection", "close")
	return writeResult(w, http.StatusUnauthorized, Refused, "the request has no valid credential")
}

// writeBusy asks the sender to retry.
func writeBusy(w http.ResponseWriter, message string) Result {
	w.Header().Set("Retry-After", "5")
	return writeResult(w, http.StatusServiceUnavailable, Busy, message)
}
