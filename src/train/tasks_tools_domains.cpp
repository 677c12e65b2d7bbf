#include "train/tasks_tools_domains.h"

#include <algorithm>
#include <array>

namespace tidepool {
namespace {

using Texts = std::string_view;
using ToolInput = ToolParameterSpec;

constexpr Texts kArtistValues[] = {"the Otters",     "Mira Lund", "Blue Harbor", "Tin Roof",
                                   "the Night Owls", "Juno Vale", "Paper Boats", "Old Maple"};
constexpr Texts kCityValues[] = {"Lima",    "Oslo",    "Cairo",  "Paris",  "Tokyo",  "Delhi",   "Rome",   "Berlin",
                                 "Madrid",  "Vienna",  "Athens", "Dublin", "Prague", "Warsaw",  "Lisbon", "Helsinki",
                                 "Toronto", "Chicago", "Boston", "Denver", "Sydney", "Nairobi", "Lagos",  "Hanoi",
                                 "Seoul",   "Quito",   "Bogota", "Havana", "Tunis",  "Riga"};
constexpr Texts kColorValues[] = {"red", "blue", "green", "white", "yellow", "orange", "purple", "pink"};
constexpr Texts kCurrencyFromValues[] = {"euros", "dollars", "pounds", "francs", "yen"};
constexpr Texts kCurrencyToValues[] = {"crowns", "rupees", "pesos", "dinars", "liras"};
constexpr Texts kDayValues[] = {"today",       "tomorrow",  "on Monday",   "on Tuesday", "on Wednesday",
                                "on Thursday", "on Friday", "on Saturday", "on Sunday"};
constexpr Texts kDeviceValues[] = {"heater", "fan", "radio", "television", "printer", "oven", "dishwasher", "camera"};
constexpr Texts kFileValues[] = {"notes.txt", "report.pdf", "photo.jpg",   "budget.csv", "letter.txt",
                                 "plan.md",   "recipe.txt", "invoice.pdf", "draft.md",   "todo.txt"};
constexpr Texts kFolderValues[] = {"home", "work", "archive", "music", "photos", "backup", "projects", "downloads"};
constexpr Texts kGenreValues[] = {"jazz", "rock", "pop", "folk", "blues", "opera", "techno", "country", "classical"};
constexpr Texts kHeadlineValues[] = {"the bridge is open again", "the team won three to one",
                                     "the library has new hours", "rain is expected all week"};
constexpr Texts kItemValues[] = {"milk",   "bread",  "eggs",  "butter", "apples", "rice",    "coffee",  "soap",
                                 "cheese", "onions", "pasta", "salt",   "paper",  "oranges", "tomatoes"};
constexpr Texts kLabelValues[] = {"tea", "pasta", "eggs", "laundry", "workout", "nap", "bread", "parking"};
constexpr Texts kMeetingValues[] = {"lunch",      "dentist",    "team meeting", "piano lesson",  "haircut",
                                    "yoga class", "phone call", "book club",    "job interview", "birthday party"};
constexpr Texts kMessageValues[] = {"I am late",    "call me back",        "dinner is ready",  "the train is on time",
                                    "see you soon", "the meeting is over", "I found the keys", "bring some milk"};
constexpr Texts kPersonValues[] = {"Anna", "Ben", "Clara", "David", "Emma",  "Felix", "Grace",  "Henry", "Ida", "Jonas",
                                   "Kate", "Leo", "Maria", "Nina",  "Oscar", "Paula", "Robert", "Sara",  "Tom", "Vera"};
constexpr Texts kPlaceValues[] = {"the station",  "the library", "the airport", "the museum", "the market",
                                  "the hospital", "the stadium", "the harbor",  "the school", "the park"};
constexpr Texts kRoomValues[] = {"kitchen", "bedroom", "bathroom", "hall",  "garage",
                                 "office",  "garden",  "cellar",   "attic", "living room"};
constexpr Texts kSkyValues[] = {"sunny", "cloudy", "rain", "snow", "fog", "wind"};
constexpr Texts kStateValues[] = {"on", "off"};
constexpr Texts kTimeValues[] = {"at 7:00",  "at 8:30",  "at 9:15",  "at 10:00", "at 11:45", "at noon",
                                 "at 13:30", "at 15:00", "at 16:20", "at 18:00", "at 19:30", "at 21:00"};
constexpr Texts kTopicValues[] = {"sports", "science", "politics", "business", "weather", "travel", "health", "art"};

constexpr ToolInput kGetWeatherParameters[] = {{"city", "string", "name of the city"},
                                               {"day", "string", "the day as it was said"}};
constexpr Texts kGetWeatherRequests[] = {
    "What is the weather in <city> <day>?", "How will the weather be in <city> <day>?",
    "Tell me the weather for <city> <day>.", "What can I expect outside in <city> <day>?"};
constexpr ToolInput kGetTemperatureParameters[] = {{"city", "string", "name of the city"}};
constexpr Texts kGetTemperatureRequests[] = {"How warm is it in <city>?",
                                             "What is the temperature in <city> right now?",
                                             "How many degrees are there in <city>?", "Is it cold in <city>?"};
constexpr ToolInput kSetLightParameters[] = {{"room", "string", "which room"}, {"state", "string", "on or off"}};
constexpr Texts kSetLightRequests[] = {"Turn <state> the light in the <room>.", "Switch the <room> light <state>.",
                                       "Please put the light in the <room> <state>.",
                                       "Can you turn the <room> lamp <state>?"};
constexpr ToolInput kDimLightParameters[] = {{"room", "string", "which room"},
                                             {"percent", "integer", "brightness, 0 to 100"}};
constexpr Texts kDimLightRequests[] = {
    "Dim the light in the <room> to <percent> percent.", "Set the <room> light to <percent> percent.",
    "I want <percent> percent light in the <room>.", "Make the <room> light <percent> percent bright."};
constexpr ToolInput kColorLightParameters[] = {{"room", "string", "which room"},
                                               {"color", "string", "color of the light"}};
constexpr Texts kColorLightRequests[] = {"Make the light in the <room> <color>.", "Turn the <room> lamp <color>.",
                                         "I would like <color> light in the <room>.",
                                         "Set the color of the <room> light to <color>."};
constexpr ToolInput kSetHeatingParameters[] = {{"room", "string", "which room"},
                                               {"temperature", "integer", "degrees Celsius"}};
constexpr Texts kSetHeatingRequests[] = {
    "Heat the <room> to <temperature> degrees.", "Set the <room> to <temperature> degrees.",
    "I want it to be <temperature> degrees in the <room>.", "Make the <room> <temperature> degrees warm."};
constexpr ToolInput kSwitchDeviceParameters[] = {{"device", "string", "which device"},
                                                 {"state", "string", "on or off"}};
constexpr Texts kSwitchDeviceRequests[] = {"Turn the <device> <state>.", "Switch <state> the <device>.",
                                           "Please turn <state> the <device>.", "Can you switch the <device> <state>?"};
constexpr ToolInput kAddEventParameters[] = {{"meeting", "string", "what it is about"},
                                             {"day", "string", "the day as it was said"},
                                             {"time", "string", "the time as it was said"}};
constexpr Texts kAddEventRequests[] = {"Put <meeting> in my calendar <day> <time>.",
                                       "I have <meeting> <day> <time>, please note it.", "Add <meeting> <day> <time>.",
                                       "Schedule <meeting> <day> <time>."};
constexpr ToolInput kCountEventsParameters[] = {{"day", "string", "the day as it was said"}};
constexpr Texts kCountEventsRequests[] = {"How many events do I have <day>?", "Is there much in my calendar <day>?",
                                          "How busy am I <day>?", "Count my events <day>."};
constexpr ToolInput kDeleteEventParameters[] = {{"meeting", "string", "what it is about"},
                                                {"day", "string", "the day as it was said"}};
constexpr Texts kDeleteEventRequests[] = {"Cancel <meeting> <day>.", "Delete <meeting> <day> from my calendar.",
                                          "I will not go to <meeting> <day>, take it out.", "Remove <meeting> <day>."};
constexpr ToolInput kSetTimerParameters[] = {{"minutes", "integer", "length in minutes"},
                                             {"label", "string", "name of the timer"}};
constexpr Texts kSetTimerRequests[] = {
    "Set a timer for <minutes> minutes for <label>.", "Start a <label> timer of <minutes> minutes.",
    "Remind me of the <label> in <minutes> minutes.", "I need a timer for <label>, <minutes> minutes."};
constexpr ToolInput kStopTimerParameters[] = {{"label", "string", "name of the timer"}};
constexpr Texts kStopTimerRequests[] = {"Stop the <label> timer.", "Cancel the timer for <label>.",
                                        "I no longer need the <label> timer.", "End the <label> timer."};
constexpr ToolInput kTimeLeftParameters[] = {{"label", "string", "name of the timer"}};
constexpr Texts kTimeLeftRequests[] = {"How long does the <label> timer still run?",
                                       "How much time is left for <label>?", "When is the <label> timer over?",
                                       "Check the <label> timer."};
constexpr ToolInput kAddItemParameters[] = {{"item", "string", "what to buy"}, {"count", "integer", "how many"}};
constexpr Texts kAddItemRequests[] = {"Put <count> <item> on the shopping list.",
                                      "Add <item> to my list, <count> of them.", "We need <count> <item>.",
                                      "Please note that I must buy <count> <item>."};
constexpr ToolInput kRemoveItemParameters[] = {{"item", "string", "what to buy"}};
constexpr Texts kRemoveItemRequests[] = {"Take <item> off the list.", "Remove <item> from my shopping list.",
                                         "We have <item> already, delete it.", "I no longer need <item>."};
constexpr ToolInput kItemPriceParameters[] = {{"item", "string", "what to buy"}};
constexpr Texts kItemPriceRequests[] = {"How much does <item> cost?", "What is the price of <item>?",
                                        "Is <item> expensive?", "Look up the price of <item>."};
constexpr ToolInput kSendMessageParameters[] = {{"person", "string", "first name"},
                                                {"message", "string", "text to send"}};
constexpr Texts kSendMessageRequests[] = {"Write to <person> that <message>.", "Send <person> a message: <message>.",
                                          "Tell <person>: <message>.", "Text <person> that <message>."};
constexpr ToolInput kCallPersonParameters[] = {{"person", "string", "first name"}};
constexpr Texts kCallPersonRequests[] = {"Call <person>.", "Please phone <person>.", "I want to talk to <person>.",
                                         "Give <person> a ring."};
constexpr ToolInput kCountMessagesParameters[] = {{"person", "string", "first name"}};
constexpr Texts kCountMessagesRequests[] = {"Did <person> write to me?", "How many messages are there from <person>?",
                                            "Is there news from <person>?", "Check messages from <person>."};
constexpr ToolInput kPlayGenreParameters[] = {{"genre", "string", "kind of music"}, {"volume", "integer", "0 to 10"}};
constexpr Texts kPlayGenreRequests[] = {
    "Play <genre> at volume <volume>.", "I want to hear <genre> at volume <volume>.",
    "Put on some <genre>, volume <volume>.", "Start <genre> music with volume <volume>."};
constexpr ToolInput kPlayArtistParameters[] = {{"artist", "string", "who plays"}};
constexpr Texts kPlayArtistRequests[] = {"Play something by <artist>.", "I want to hear <artist>.", "Put on <artist>.",
                                         "Play the best songs of <artist>."};
constexpr ToolInput kMoveFileParameters[] = {{"file", "string", "name of the file"},
                                             {"folder", "string", "name of the folder"}};
constexpr Texts kMoveFileRequests[] = {"Move <file> to <folder>.", "Put <file> into the folder <folder>.",
                                       "<file> belongs in <folder>, move it.", "Please bring <file> to <folder>."};
constexpr ToolInput kFileSizeParameters[] = {{"file", "string", "name of the file"}};
constexpr Texts kFileSizeRequests[] = {"How large is <file>?", "What is the size of <file>?", "Is <file> a big file?",
                                       "How many kilobytes has <file>?"};
constexpr ToolInput kDeleteFileParameters[] = {{"file", "string", "name of the file"},
                                               {"folder", "string", "name of the folder"}};
constexpr Texts kDeleteFileRequests[] = {"Delete <file> in <folder>.", "Remove <file> from <folder>.",
                                         "I do not need <file> in <folder> any more.",
                                         "Throw away <file> of <folder>."};
constexpr ToolInput kConvertMoneyParameters[] = {{"amount", "integer", "how much money"},
                                                 {"currency_from", "string", "given currency"},
                                                 {"currency_to", "string", "wanted currency"}};
constexpr Texts kConvertMoneyRequests[] = {"How many <currency_to> are <amount> <currency_from>?",
                                           "Convert <amount> <currency_from> to <currency_to>.",
                                           "What are <amount> <currency_from> in <currency_to>?",
                                           "I have <amount> <currency_from>, how many <currency_to> is that?"};
constexpr ToolInput kGetNewsParameters[] = {{"topic", "string", "what the news is about"}};
constexpr Texts kGetNewsRequests[] = {"What is new in <topic>?", "Tell me the news about <topic>.",
                                      "Any headlines about <topic>?", "Read me the latest on <topic>."};
constexpr ToolInput kGetDistanceParameters[] = {{"place", "string", "where to go"}};
constexpr Texts kGetDistanceRequests[] = {"How far is it to <place>?", "What is the distance to <place>?",
                                          "Is <place> far from here?", "How many kilometres to <place>?"};
constexpr ToolInput kBookTaxiParameters[] = {{"place", "string", "where to go"},
                                             {"time", "string", "the time as it was said"}};
constexpr Texts kBookTaxiRequests[] = {"Get me a taxi to <place> <time>.", "I need a taxi to <place> <time>.",
                                       "Order a cab <time> to <place>.", "Please book a taxi <time> to <place>."};

constexpr ToolSpec kTools[] = {
    {"weather", "get_weather", "Weather of a city on a day.", kGetWeatherParameters, kGetWeatherRequests,
     "{\"sky\": \"<sky>\", \"degrees\": <degrees>}", "In <city> <day>: <sky>, <degrees> degrees."},
    {"weather", "get_temperature", "Temperature of a city now.", kGetTemperatureParameters, kGetTemperatureRequests,
     "{\"degrees\": <degrees>}", "It is <degrees> degrees in <city>."},
    {"home", "set_light", "Switches the light of a room.", kSetLightParameters, kSetLightRequests, "{\"ok\": true}",
     "The light in the <room> is <state>."},
    {"home", "dim_light", "Sets the brightness of a room.", kDimLightParameters, kDimLightRequests, "{\"ok\": true}",
     "The light in the <room> is at <percent> percent."},
    {"home", "color_light", "Sets the color of a room's light.", kColorLightParameters, kColorLightRequests,
     "{\"ok\": true}", "The light in the <room> is <color> now."},
    {"home", "set_heating", "Sets the temperature of a room.", kSetHeatingParameters, kSetHeatingRequests,
     "{\"ok\": true}", "The <room> will have <temperature> degrees."},
    {"home", "switch_device", "Switches a device.", kSwitchDeviceParameters, kSwitchDeviceRequests, "{\"ok\": true}",
     "The <device> is <state>."},
    {"calendar", "add_event", "Puts an event into the calendar.", kAddEventParameters, kAddEventRequests,
     "{\"ok\": true}", "I have noted <meeting> <day> <time>."},
    {"calendar", "count_events", "Number of events on a day.", kCountEventsParameters, kCountEventsRequests,
     "{\"count\": <level>}", "You have <level> events <day>."},
    {"calendar", "delete_event", "Takes an event out of the calendar.", kDeleteEventParameters, kDeleteEventRequests,
     "{\"ok\": true}", "I have taken out <meeting> <day>."},
    {"timer", "set_timer", "Starts a timer.", kSetTimerParameters, kSetTimerRequests, "{\"ok\": true}",
     "The <label> timer runs for <minutes> minutes."},
    {"timer", "stop_timer", "Stops a timer.", kStopTimerParameters, kStopTimerRequests, "{\"ok\": true}",
     "The <label> timer is stopped."},
    {"timer", "time_left", "Minutes that are left of a timer.", kTimeLeftParameters, kTimeLeftRequests,
     "{\"minutes\": <minutes>}", "There are <minutes> minutes left for <label>."},
    {"shopping", "add_item", "Puts something on the shopping list.", kAddItemParameters, kAddItemRequests,
     "{\"ok\": true}", "There are <count> <item> on the list."},
    {"shopping", "remove_item", "Takes something off the shopping list.", kRemoveItemParameters, kRemoveItemRequests,
     "{\"ok\": true}", "There is no <item> on the list any more."},
    {"shopping", "item_price", "Price of something in cents.", kItemPriceParameters, kItemPriceRequests,
     "{\"cents\": <amount>}", "It costs <amount> cents."},
    {"phone", "send_message", "Sends a text message.", kSendMessageParameters, kSendMessageRequests, "{\"ok\": true}",
     "I have written to <person>."},
    {"phone", "call_person", "Calls somebody.", kCallPersonParameters, kCallPersonRequests, "{\"ok\": true}",
     "I am calling <person>."},
    {"phone", "count_messages", "Number of unread messages from somebody.", kCountMessagesParameters,
     kCountMessagesRequests, "{\"count\": <level>}", "There are <level> messages from <person>."},
    {"music", "play_genre", "Plays music of a kind.", kPlayGenreParameters, kPlayGenreRequests, "{\"ok\": true}",
     "Playing <genre> at volume <volume>."},
    {"music", "play_artist", "Plays music of somebody.", kPlayArtistParameters, kPlayArtistRequests, "{\"ok\": true}",
     "Playing <artist>."},
    {"files", "move_file", "Moves a file.", kMoveFileParameters, kMoveFileRequests, "{\"ok\": true}",
     "I have moved <file> to <folder>."},
    {"files", "file_size", "Size of a file in kilobytes.", kFileSizeParameters, kFileSizeRequests,
     "{\"kilobytes\": <size>}", "<file> has <size> kilobytes."},
    {"files", "delete_file", "Deletes a file.", kDeleteFileParameters, kDeleteFileRequests, "{\"ok\": true}",
     "I have deleted <file>."},
    {"money", "convert_money", "Converts between currencies.", kConvertMoneyParameters, kConvertMoneyRequests,
     "{\"amount\": <converted>}", "<amount> <currency_from> are <converted> <currency_to>."},
    {"news", "get_news", "Latest news about a topic.", kGetNewsParameters, kGetNewsRequests,
     "{\"headline\": \"<headline>\"}", "The latest in <topic>: <headline>."},
    {"travel", "get_distance", "Kilometres to a place.", kGetDistanceParameters, kGetDistanceRequests,
     "{\"kilometres\": <distance>}", "It is <distance> kilometres to <place>."},
    {"travel", "book_taxi", "Orders a taxi.", kBookTaxiParameters, kBookTaxiRequests, "{\"ok\": true}",
     "A taxi to <place> is ordered <time>."},
};

constexpr SlotSpec kSlots[] = {
    {.name = "amount", .values = {}, .low = 5, .high = 500, .step = 5},
    {.name = "artist", .values = kArtistValues},
    {.name = "city", .values = kCityValues},
    {.name = "color", .values = kColorValues},
    {.name = "converted", .values = {}, .low = 3, .high = 990, .step = 1},
    {.name = "count", .values = {}, .low = 2, .high = 20, .step = 1},
    {.name = "currency_from", .values = kCurrencyFromValues},
    {.name = "currency_to", .values = kCurrencyToValues},
    {.name = "day", .values = kDayValues},
    {.name = "degrees", .values = {}, .low = -9, .high = 35, .step = 1},
    {.name = "device", .values = kDeviceValues},
    {.name = "distance", .values = {}, .low = 1, .high = 40, .step = 1},
    {.name = "file", .values = kFileValues},
    {.name = "folder", .values = kFolderValues},
    {.name = "genre", .values = kGenreValues},
    {.name = "headline", .values = kHeadlineValues},
    {.name = "item", .values = kItemValues},
    {.name = "label", .values = kLabelValues},
    {.name = "level", .values = {}, .low = 1, .high = 10, .step = 1},
    {.name = "meeting", .values = kMeetingValues},
    {.name = "message", .values = kMessageValues},
    {.name = "minutes", .values = {}, .low = 1, .high = 60, .step = 1},
    {.name = "percent", .values = {}, .low = 10, .high = 100, .step = 10},
    {.name = "person", .values = kPersonValues},
    {.name = "place", .values = kPlaceValues},
    {.name = "room", .values = kRoomValues},
    {.name = "size", .values = {}, .low = 1, .high = 900, .step = 1},
    {.name = "sky", .values = kSkyValues},
    {.name = "state", .values = kStateValues},
    {.name = "temperature", .values = {}, .low = 15, .high = 26, .step = 1},
    {.name = "time", .values = kTimeValues},
    {.name = "topic", .values = kTopicValues},
    {.name = "volume", .values = {}, .low = 0, .high = 10, .step = 1},
};

}  // namespace

std::span<const ToolSpec> tool_specs() {
  return kTools;
}

const SlotSpec* find_slot(std::string_view name) {
  const auto* const found = std::ranges::find(kSlots, name, &SlotSpec::name);
  return found == std::end(kSlots) ? nullptr : found;
}

}  // namespace tidepool
