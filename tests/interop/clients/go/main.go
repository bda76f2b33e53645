// Drives the Go client by lines on standard input; see ../README.md for the lines.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options map[string]string

var (
	namesrv   []string
	output    sync.Mutex
	senders   = map[string]rocketmq.Producer{}
	consumers = map[string]rocketmq.PushConsumer{}
)

func say(format string, values ...any) {
	output.Lock()
	defer output.Unlock()
	fmt.Printf("@ "+format+"\n", values...)
}

func where(message *primitive.MessageExt) string {
	return fmt.Sprintf("number=%s queue=%d offset=%d",
		message.Body, message.Queue.QueueId, message.QueueOffset)
}

// mark tells clients with other credentials apart, in their names.
func mark(o options) string {
	if o["user"] == "" {
		return ""
	}
	return "_" + o["user"] + "_" + o["secret"]
}

func credentials(o options) primitive.Credentials {
	return primitive.Credentials{AccessKey: o["user"], SecretKey: o["secret"]}
}

// byNumber picks the queue from the number in the body.
type byNumber struct{}

func (byNumber) Select(message *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	number, _ := strconv.Atoi(string(message.Body))
	for _, queue := range queues {
		if queue.QueueId == number%len(queues) {
			return queue
		}
	}
	return nil
}

type outcomes struct{}

func (outcomes) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	number, _ := strconv.Atoi(string(message.Body))
	switch number % 4 {
	case 0:
		return primitive.CommitMessageState
	case 1:
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (outcomes) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	number, _ := strconv.Atoi(string(message.Body))
	if number%2 == 0 {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transact(o options) error {
	made, err := rocketmq.NewTransactionProducer(
		outcomes{},
		producer.WithNameServer(namesrv),
		producer.WithGroupName(o["group"]),
		producer.WithInstanceName("transactions"+mark(o)),
		producer.WithCredentials(credentials(o)),
		producer.WithSendMsgTimeout(10*time.Second),
	)
	if err != nil {
		return err
	}
	if err := made.Start(); err != nil {
		return err
	}
	first, _ := strconv.Atoi(o["first"])
	count, _ := strconv.Atoi(o["count"])
	for number := first; number < first+count; number++ {
		message := primitive.NewMessage(o["topic"], []byte(strconv.Itoa(number)))
		message.WithTag("A").WithKeys([]string{fmt.Sprintf("key-%d", number)})
		if _, err := made.SendMessageInTransaction(context.Background(), message); err != nil {
			return err
		}
	}
	return nil
}

func produce(o options) error {
	sender := senders[mark(o)]
	if sender == nil {
		made, err := rocketmq.NewProducer(
			producer.WithNameServer(namesrv),
			producer.WithGroupName("stock_producer"+mark(o)),
			producer.WithInstanceName("producer"+mark(o)),
			producer.WithCredentials(credentials(o)),
			producer.WithQueueSelector(byNumber{}),
			producer.WithSendMsgTimeout(10*time.Second),
			producer.WithRetry(0),
		)
		if err != nil {
			return err
		}
		if err := made.Start(); err != nil {
			return err
		}
		sender, senders[mark(o)] = made, made
	}
	first, _ := strconv.Atoi(o["first"])
	count, _ := strconv.Atoi(o["count"])
	delay, _ := strconv.Atoi(o["delay"])
	tags := strings.Split(o["tags"], ",")
	for number := first; number < first+count; number++ {
		message := primitive.NewMessage(o["topic"], []byte(strconv.Itoa(number)))
		message.WithTag(tags[number%len(tags)]).WithKeys([]string{fmt.Sprintf("key-%d", number)})
		if delay > 0 {
			message.WithDelayTimeLevel(delay)
		}
		began := time.Now().UnixMicro()
		result, err := sender.SendSync(context.Background(), message)
		if err != nil {
			return err
		}
		say("sent name=%s number=%d queue=%d offset=%d id=%s begin=%d", o["topic"],
			number, result.MessageQueue.QueueId, result.QueueOffset, result.OffsetMsgID, began)
	}
	return nil
}

// work is a handler: so many milliseconds, and some numbers refused so many times.
type work struct {
	name     string
	pause    time.Duration
	lock     sync.Mutex
	refusals map[string]int
}

func newWork(o options) *work {
	millis, _ := strconv.Atoi(o["work"])
	made := &work{
		name: o["name"], pause: time.Duration(millis) * time.Millisecond, refusals: map[string]int{},
	}
	for _, one := range strings.Split(o["refuse"], ",") {
		number, times, _ := strings.Cut(one, ":")
		made.refusals[number], _ = strconv.Atoi(times)
	}
	return made
}

func (w *work) handle(message *primitive.MessageExt) bool {
	what := fmt.Sprintf("name=%s %s tag=%s topic=%s tries=%d begin=%d", w.name, where(message),
		message.GetTags(), message.Topic, message.ReconsumeTimes, time.Now().UnixMicro())
	say("begun %s", what)
	time.Sleep(w.pause)
	w.lock.Lock()
	w.refusals[string(message.Body)]--
	refused := w.refusals[string(message.Body)] >= 0
	w.lock.Unlock()
	kind, ended := "got", time.Now().UnixMicro()
	if refused {
		kind = "refused"
	}
	say("%s %s end=%d at=%d", kind, what, ended, ended/1000)
	return !refused
}

func push(o options) error {
	name, model := o["name"], consumer.Clustering
	if o["mode"] == "broadcast" {
		model = consumer.BroadCasting
	}
	handler, refusal := newWork(o), consumer.ConsumeRetryLater
	if o["mode"] == "orderly" {
		refusal = consumer.SuspendCurrentQueueAMoment
	}
	tries, err := strconv.Atoi(o["tries"])
	if err != nil {
		tries = -1
	}
	made, err := rocketmq.NewPushConsumer(
		consumer.WithMaxReconsumeTimes(int32(tries)),
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance(name),
		consumer.WithCredentials(credentials(o)),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(o["mode"] == "orderly"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeGoroutineNums(1),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{
		Type: consumer.TAG, Expression: strings.ReplaceAll(o["tags"], ",", "||"),
	}
	if o["sql"] != "" {
		text, err := base64.URLEncoding.DecodeString(o["sql"])
		if err != nil {
			return err
		}
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: string(text)}
	}
	err = made.Subscribe(o["topic"], selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				if !handler.handle(message) {
					return refusal, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	consumers[name] = made
	return made.Start()
}

func stop(o options) error {
	made := consumers[o["name"]]
	delete(consumers, o["name"])
	return made.Shutdown()
}

func pull(o options) error {
	tool, err := admin.NewAdmin(
		admin.WithResolver(primitive.NewPassthroughResolver(namesrv)),
		admin.WithCredentials(credentials(o)),
	)
	if err != nil {
		return err
	}
	queues, err := tool.FetchPublishMessageQueues(context.Background(), o["topic"])
	if err != nil {
		return err
	}
	made, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(o["group"]),
		consumer.WithInstance("puller"+mark(o)),
		consumer.WithCredentials(credentials(o)),
	)
	if err != nil {
		return err
	}
	if err := made.Subscribe(o["topic"], consumer.MessageSelector{}); err != nil {
		return err
	}
	if err := made.Start(); err != nil {
		return err
	}
	defer made.Shutdown()
	for _, queue := range queues {
		// A pull at the end of a queue would be held for 20 s, so it stops where the queue ends.
		for offset, end := int64(0), int64(1); offset < end; {
			result, err := made.PullFrom(context.Background(), queue, offset, 32)
			if err != nil {
				return err
			}
			if result.Status != primitive.PullFound {
				return fmt.Errorf("%v at %d: status %v", queue, offset, result.Status)
			}
			for _, message := range result.GetMessageExts() {
				say("pulled %s", where(message))
			}
			offset, end = result.NextBeginOffset, result.MaxOffset
		}
	}
	return nil
}

func main() {
	rlog.SetLogLevel("error")
	namesrv = []string{os.Args[1]}
	verbs := map[string]func(options) error{
		"produce": produce, "transact": transact, "push": push, "stop": stop, "pull": pull,
	}
	say("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		given := options{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			given[name] = value
		}
		if err := verbs[words[0]](given); err != nil {
			reason := base64.StdEncoding.EncodeToString([]byte(err.Error()))
			say("failed verb=%s reason=%s", words[0], reason)
		} else {
			say("done verb=%s", words[0])
		}
	}
}
